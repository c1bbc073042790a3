// SPDX-License-Identifier: Apache-2.0
//
// Version strings of this field, in one order: "8.2.RC1" < "8.2.0", "9.1.0-beta.2" < "9.1.0", "25.0.rc1" < "25.0.rc1.1" <
// "25.0.0", "2.9.0" < "2.9.0.post2". Case and separators do not count.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pointsman::doctor {

class Version {
 public:
  Version() = default;
  explicit Version(std::string_view text);

  bool empty() const { return parts_.empty(); }
  const std::string& text() const { return text_; }
  // Everything before a "+" (local version of a wheel) and ".post": "2.9.0" of "2.9.0.post2+cpu".
  Version base() const;
  // The number of component `i`; -1 when there is none, or it is no number.
  long major() const { return parts_.empty() ? -1 : parts_[0]; }

  // Negative, 0, positive. A missing component counts as 0.
  int compare(const Version& other) const;
  // "25.0.X" and "9.1.x": the components before the X agree. Otherwise `pattern` is a prefix by components: "25.2.0" takes
  // "25.2.0.1" too.
  bool matches(std::string_view pattern) const;

 private:
  std::string text_;
  // Numbers as they are; alpha, beta and rc become negative, so that they sort before any release; post is positive.
  std::vector<long> parts_;
};

}  // namespace pointsman::doctor
