// SPDX-License-Identifier: Apache-2.0
#include "base/line_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pointsman {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LineChart, DrawsEverySeriesInsideItsAxes) {
  const std::string svg = line_chart_svg({.title = "a < b", .x_label = "x", .y_label = "y", .y_low = 0, .y_high = 100, .y_unit = " %",
                                          .series = {{.name = "one & two", .points = {{1, 0}, {3, 100}}}, {.name = "bound", .points = {{1, 150}}, .dashed = true}}});
  EXPECT_THAT(svg, HasSubstr("<title>a &lt; b</title>"));
  EXPECT_THAT(svg, HasSubstr("one &amp; two"));
  // x from 1 to 3 over 64..690, y from 0 to 100 over 368..44; what lies above is drawn at the end.
  EXPECT_THAT(svg, HasSubstr("points=\"64.0,368.0 690.0,44.0 \""));
  EXPECT_THAT(svg, HasSubstr("points=\"64.0,44.0 \""));
  EXPECT_THAT(svg, HasSubstr("stroke-dasharray"));
  EXPECT_THAT(svg, HasSubstr("100 %"));
}

TEST(LineChart, NothingToDrawIsAPictureToo) {
  const std::string svg = line_chart_svg({});
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace pointsman
