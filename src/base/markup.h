// SPDX-License-Identifier: Apache-2.0
//
// What reports for people and machines share: escaped text for HTML and XML, and JUnit files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pointsman {

// Safe between tags and inside quoted attributes of HTML and XML. Control characters that XML forbids, and bytes that are no UTF-8,
// become U+FFFD.
std::string escape_markup(std::string_view text);

struct JunitCase {
  std::string name, class_name;
  std::string failure;  // empty: passed. The first line is the message.
  std::string output;   // shown with the case
};
// One <testsuite>, as continuous integration systems read it.
std::string junit_xml(std::string_view suite, const std::vector<JunitCase>& cases);

}  // namespace pointsman
