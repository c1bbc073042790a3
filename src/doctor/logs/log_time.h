// SPDX-License-Identifier: Apache-2.0
//
// Times as logs write them: plog ("2025-10-23-17:28:06.049.385"), Python and C++ loggers ("2025-05-13 02:25:58,642", also with
// T and
// "."), glog without a year ("E1206 18:44:12.715298746", month and day together), and ctime ("Thu Oct 23 17:25:58 2025"). None
// says its zone; the clocks of one job are taken to agree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pointsman::doctor {

struct LogTime {
  int year = 0;  // 0: not written
  int month = 1, day = 1;
  int64_t us_of_day = 0;

  // Microseconds since 1970, with `default_year` when there is none.
  int64_t us(int default_year) const;
};

// The first time in the first 200 bytes of a line.
std::optional<LogTime> find_time(std::string_view line);
// ctime's form, at the start of `text`.
std::optional<LogTime> parse_ctime(std::string_view text);
// "2025-10-23 17:28:06.049"; "10-23 17:28:06.049" without a year.
std::string time_text(int64_t us, bool with_year = true);

}  // namespace pointsman::doctor
