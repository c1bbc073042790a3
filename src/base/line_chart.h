// SPDX-License-Identifier: Apache-2.0
//
// A picture of lines as a standalone SVG file: for benchmarks and documents. All text is escaped.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace pointsman {

struct LineChart {
  struct Series {
    std::string name;
    std::vector<std::pair<double, double>> points;  // ascending x
    bool dashed = false;                             // a bound or a reference, not a result
  };
  std::string title, x_label, y_label;
  double y_low = 0, y_high = 1;  // the axis of y; points beyond are drawn at its end
  std::string y_unit;            // behind the numbers of the axis
  std::vector<Series> series;
};

// Axis x goes from the least to the greatest x of all points, labelled where points are.
std::string line_chart_svg(const LineChart& chart);

}  // namespace pointsman
