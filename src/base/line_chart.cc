// SPDX-License-Identifier: Apache-2.0
#include "base/line_chart.h"

#include <algorithm>
#include <set>

#include "base/log.h"
#include "base/markup.h"

namespace pointsman {
namespace {

constexpr double kWidth = 860, kHeight = 420, kLeft = 64, kRight = 170, kTop = 44, kBottom = 52;
// Colours that differ for the colour-blind too (Okabe and Ito).
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};
constexpr const char* kReferenceColours[] = {"#000000", "#888888"};

}  // namespace

std::string line_chart_svg(const LineChart& c) {
  std::set<double> xs;
  for (const LineChart::Series& s : c.series) {
    for (const auto& [x, y] : s.points) xs.insert(x);
  }
  const double x_low = xs.empty() ? 0 : *xs.begin(), x_high = xs.empty() ? 1 : *xs.rbegin();
  const auto at_x = [&](double x) { return kLeft + (x_high > x_low ? (x - x_low) / (x_high - x_low) : 0.5) * (kWidth - kLeft - kRight); };
  const auto at_y = [&](double y) {
    const double part = c.y_high > c.y_low ? (std::clamp(y, c.y_low, c.y_high) - c.y_low) / (c.y_high - c.y_low) : 0.5;
    return kTop + (1 - part) * (kHeight - kTop - kBottom);
  };
  std::string svg = format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n"
                           "<title>{}</title>\n<rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n<text x=\"{}\" y=\"24\" font-size=\"14\">{}</text>\n",
                           kWidth, kHeight, escape_markup(c.title), kWidth, kHeight, kLeft, escape_markup(c.title));
  for (int i = 0; i <= 5; ++i) {
    const double y = c.y_low + (c.y_high - c.y_low) * i / 5;
    svg += format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"#e4e4e4\"/><text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.4g}{}</text>\n", kLeft,
                  at_y(y), kWidth - kRight, at_y(y), kLeft - 8, at_y(y) + 4, y, escape_markup(c.y_unit));
  }
  double last_label = -1e9;
  for (const double x : xs) {
    svg += format("<line x1=\"{:.1f}\" y1=\"{}\" x2=\"{:.1f}\" y2=\"{}\" stroke=\"#888888\"/>", at_x(x), kHeight - kBottom, at_x(x), kHeight - kBottom + 5);
    if (at_x(x) - last_label >= 28) {
      svg += format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.4g}</text>", at_x(x), kHeight - kBottom + 20, x);
      last_label = at_x(x);
    }
    svg += '\n';
  }
  svg += format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n<text x=\"16\" y=\"{}\" transform=\"rotate(-90 16 {})\" text-anchor=\"middle\">{}</text>\n",
                (kLeft + kWidth - kRight) / 2, kHeight - 12, escape_markup(c.x_label), (kTop + kHeight - kBottom) / 2, (kTop + kHeight - kBottom) / 2,
                escape_markup(c.y_label));
  size_t solid = 0, dashed = 0;
  double legend = kTop + 8;
  for (const LineChart::Series& s : c.series) {
    const char* const colour = s.dashed ? kReferenceColours[dashed++ % std::size(kReferenceColours)] : kColours[solid++ % std::size(kColours)];
    const char* const dash = s.dashed ? " stroke-dasharray=\"6 4\"" : "";
    std::string points;
    for (const auto& [x, y] : s.points) points += format("{:.1f},{:.1f} ", at_x(x), at_y(y));
    svg += format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", points, colour, dash);
    svg += format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{}\" stroke-width=\"2\"{}/><text x=\"{}\" y=\"{}\">{}</text>\n", kWidth - kRight + 14, legend,
                  kWidth - kRight + 38, legend, colour, dash, kWidth - kRight + 44, legend + 4, escape_markup(s.name));
    legend += 20;
  }
  return svg + "</svg>\n";
}

}  // namespace pointsman
