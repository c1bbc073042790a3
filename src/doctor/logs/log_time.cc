// SPDX-License-Identifier: Apache-2.0
#include "doctor/logs/log_time.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/log.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

bool digit(char c) {
  return c >= '0' && c <= '9';
}

// `n` digits at `at`, or -1.
int digits(std::string_view s, size_t at, size_t n) {
  if (at + n > s.size()) return -1;
  int value = 0;
  for (size_t i = at; i < at + n; ++i) {
    if (!digit(s[i])) return -1;
    value = value * 10 + (s[i] - '0');
  }
  return value;
}

// "HH:MM:SS" with an optional fraction ".123.456", ".123456789", ",123".
std::optional<int64_t> time_of_day(std::string_view s, size_t at) {
  const int h = digits(s, at, 2), m = digits(s, at + 3, 2), sec = digits(s, at + 6, 2);
  if (h < 0 || m < 0 || sec < 0 || h > 23 || m > 59 || sec > 60 || s[at + 2] != ':' || s[at + 5] != ':') return std::nullopt;
  int64_t fraction = 0, scale = 100'000;
  size_t i = at + 8;
  if (i < s.size() && (s[i] == '.' || s[i] == ',')) {
    ++i;
    for (int dots = 0; i < s.size() && scale > 0; ++i) {
      if (digit(s[i])) {
        fraction += (s[i] - '0') * scale;
        scale /= 10;
      } else if (s[i] == '.' && dots++ == 0 && i + 1 < s.size() && digit(s[i + 1])) {
        continue;  // plog separates milli- and microseconds
      } else {
        break;
      }
    }
  }
  return ((h * 60 + m) * 60 + sec) * INT64_C(1'000'000) + fraction;
}

bool valid_date(int month, int day) {
  return month >= 1 && month <= 12 && day >= 1 && day <= 31;
}

constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

std::optional<LogTime> full_at(std::string_view s, size_t at) {
  const int year = digits(s, at, 4), month = digits(s, at + 5, 2), day = digits(s, at + 8, 2);
  if (year < 1990 || year > 2200 || month < 0 || day < 0 || !valid_date(month, day)) return std::nullopt;
  if ((s[at + 4] != '-' && s[at + 4] != '/') || s[at + 7] != s[at + 4] || at + 11 >= s.size()) return std::nullopt;
  const char between = s[at + 10];
  if (between != '-' && between != ' ' && between != 'T') return std::nullopt;
  const auto us = time_of_day(s, at + 11);
  if (!us) return std::nullopt;
  return LogTime{year, month, day, *us};
}

// "E321 02:07:08.4", "I1206 18:44:12.7": a level letter, month without a leading zero, two digits of the day.
std::optional<LogTime> glog_at(std::string_view s, size_t at) {
  if (std::string_view("EIWF").find(s[at]) == std::string_view::npos) return std::nullopt;
  size_t n = 0;
  while (at + 1 + n < s.size() && n < 5 && digit(s[at + 1 + n])) ++n;
  if ((n != 3 && n != 4) || at + 1 + n >= s.size() || s[at + 1 + n] != ' ') return std::nullopt;
  const int month = digits(s, at + 1, n - 2), day = digits(s, at + n - 1, 2);
  if (!valid_date(month, day)) return std::nullopt;
  const auto us = time_of_day(s, at + n + 2);
  if (!us) return std::nullopt;
  return LogTime{0, month, day, *us};
}

}  // namespace

int64_t LogTime::us(int default_year) const {
  using namespace std::chrono;
  const year_month_day date{std::chrono::year{year != 0 ? year : default_year},
                            std::chrono::month{static_cast<unsigned>(month)}, std::chrono::day{static_cast<unsigned>(day)}};
  return sys_days{date}.time_since_epoch().count() * INT64_C(86'400'000'000) + us_of_day;
}

std::optional<LogTime> find_time(std::string_view line) {
  line = line.substr(0, 200);
  for (size_t at = 0; at + 12 < line.size(); ++at) {
    const bool at_word = at == 0 || !digit(line[at - 1]);
    if (!at_word) continue;
    if (digit(line[at])) {
      if (auto t = full_at(line, at)) return t;
    } else if (at == 0 || line[at - 1] == '[' || line[at - 1] == ' ' || line[at - 1] == ':') {
      if (auto t = glog_at(line, at)) return t;
    }
  }
  return std::nullopt;
}

std::optional<LogTime> parse_ctime(std::string_view text) {
  const auto words = words_of(text.substr(0, 40));
  if (words.size() < 5) return std::nullopt;
  const auto month = std::find(kMonths.begin(), kMonths.end(), words[1]);
  const auto day = parse_int(words[2]);
  const auto us = words[3].size() >= 8 ? time_of_day(words[3], 0) : std::nullopt;
  const int year = digits(words[4], 0, 4);
  if (month == kMonths.end() || !day || *day < 1 || *day > 31 || !us || year < 1990 || year > 2200) return std::nullopt;
  return LogTime{year, static_cast<int>(month - kMonths.begin()) + 1, static_cast<int>(*day), *us};
}

std::string time_text(int64_t us, bool with_year) {
  using namespace std::chrono;
  int64_t days = us / INT64_C(86'400'000'000), rest = us % INT64_C(86'400'000'000);
  if (rest < 0) {
    rest += INT64_C(86'400'000'000);
    --days;
  }
  const year_month_day date{sys_days{std::chrono::days{days}}};
  const int64_t s = rest / 1'000'000;
  const std::string year = with_year ? format("{:04}-", static_cast<int>(date.year())) : "";
  return format("{}{:02}-{:02} {:02}:{:02}:{:02}.{:03}", year, static_cast<unsigned>(date.month()),
                static_cast<unsigned>(date.day()), s / 3600, s / 60 % 60, s % 60, rest / 1000 % 1000);
}

}  // namespace pointsman::doctor
