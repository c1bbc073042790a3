// SPDX-License-Identifier: Apache-2.0
#include "cli/unit_groups.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "base/log.h"

namespace pointsman::cli {
namespace {

constexpr std::string_view kPrefix = "layers.";

// "layers.12.mlp" -> 12 and ".mlp".
std::optional<std::pair<int, std::string_view>> split_layer(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int number = 0;
  const char* const end = name.data() + name.size();
  const auto [rest, ec] = std::from_chars(name.data() + kPrefix.size(), end, number);
  if (ec != std::errc() || rest == end || *rest != '.') return std::nullopt;
  return std::pair(number, std::string_view(rest, static_cast<size_t>(end - rest)));
}

std::string ranges(const std::vector<int>& numbers) {  // ascending
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t j = i;
    while (j + 1 < numbers.size() && numbers[j + 1] == numbers[j] + 1) ++j;
    text += format("{}{}", text.empty() ? "" : ",", numbers[i]);
    if (j > i) text += format("-{}", numbers[j]);
    i = j + 1;
  }
  return text;
}

}  // namespace

std::vector<UnitGroup> group_units(std::span<const PlanUnit> units) {
  std::vector<UnitGroup> groups;
  std::vector<std::vector<int>> numbers;
  std::vector<std::string_view> suffixes;
  for (const PlanUnit& u : units) {
    const auto layer = split_layer(u.name);
    size_t g = groups.size();
    if (layer) {
      for (g = 0; g < groups.size(); ++g) {
        if (!numbers[g].empty() && suffixes[g] == layer->second && groups[g].placement == u.placement &&
            groups[g].bytes_each == u.bytes)
          break;
      }
    }
    if (g == groups.size()) {
      groups.push_back({.name = u.name, .placement = u.placement, .bytes_each = u.bytes, .layers = 0});
      numbers.emplace_back();
      suffixes.push_back(layer ? layer->second : std::string_view());
    }
    groups[g].bytes += u.bytes;
    groups[g].layers += 1;
    if (layer) numbers[g].push_back(layer->first);
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!numbers[g].empty()) groups[g].name = format("{}{}{}", kPrefix, ranges(numbers[g]), suffixes[g]);
  }
  return groups;
}

}  // namespace pointsman::cli
