// SPDX-License-Identifier: Apache-2.0
//
// The file formats: version.info, and the table of `npu-smi info`.
#include <algorithm>

#include "doctor/ascend.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr size_t kMaxNpus = 4096;

// "| 0     910B3  | OK  | 93.5 41 0 / 0 |" -> the cells, trimmed.
std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  if (!line.starts_with('|')) return cells;
  line.remove_prefix(1);
  if (line.ends_with('|')) line.remove_suffix(1);
  for (const std::string_view cell : split(line, '|')) cells.push_back(trim(cell));
  return cells;
}

// "3351 / 65536" at the end of a cell.
std::pair<int64_t, int64_t> last_fraction(std::string_view cell) {
  const size_t slash = cell.rfind('/');
  if (slash == std::string_view::npos) return {-1, -1};
  const auto total = leading_int(cell.substr(slash + 1));
  const auto left = words_of(cell.substr(0, slash));
  const auto used = left.empty() ? std::nullopt : parse_int(left.back());
  return {used.value_or(-1), total.value_or(-1)};
}

bool is_bus_id(std::string_view text) {
  return text.size() >= 7 && contains(text, ":") && contains(text, ".");
}

}  // namespace

std::vector<VersionRange> parse_version_ranges(std::string_view text) {
  std::vector<VersionRange> ranges;
  while (ranges.size() < 64) {
    const size_t open = text.find('[');
    const size_t close = open == std::string_view::npos ? open : text.find(']', open);
    if (close == std::string_view::npos) break;
    const std::string_view inside = text.substr(open + 1, close - open - 1);
    const size_t comma = inside.find(',');
    const std::string_view first = trim(inside.substr(0, comma));
    const std::string_view last = comma == std::string_view::npos ? first : trim(inside.substr(comma + 1));
    if (!first.empty()) ranges.emplace_back(printable(first, 64), printable(last, 64));
    text.remove_prefix(close + 1);
  }
  return ranges;
}

bool in_ranges(const Version& version, const std::vector<VersionRange>& ranges) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const VersionRange& r) {
    std::string_view last = r.second;
    if (last.ends_with('.')) {
      last.remove_suffix(1);
      if (version.matches(last)) return true;
    }
    return Version(r.first).compare(version) <= 0 && (version.compare(Version(last)) <= 0 || version.matches(last));
  });
}

PackageInfo parse_package_info(std::string_view text, std::string path) {
  PackageInfo info{.path = std::move(path)};
  info.version = Version(field(text, "Version=").value_or(""));
  info.package = Version(field(text, "package_version=").value_or(""));
  if (info.package.empty()) info.package = info.version;
  info.compatible_firmware = parse_version_ranges(field(text, "compatible_version_fw=").value_or(""));
  info.compatible_driver = parse_version_ranges(field(text, "compatible_version_drv=").value_or(""));
  return info;
}

// Two lines per chip:
//   | NPU   Name    | Health | Power  Temp  Hugepages |
//   | Chip  Phy-ID  | Bus-Id | AICore  Memory  HBM    |
// A chip's second line has a bus address in its second cell; that is how the two are told apart.
NpuSmi parse_npu_smi(std::string_view text) {
  NpuSmi smi;
  std::optional<Npu> current;
  for (const std::string_view line : lines_of(text)) {
    const std::string_view clean = trim(line);
    if (const size_t at = clean.find("Version:"); at != std::string_view::npos && contains(clean, "npu-smi")) {
      const auto words = words_of(clean.substr(at + 8));
      if (!words.empty()) smi.version = printable(words[0], 40);
      continue;
    }
    if (contains(clean, "Phy-ID")) smi.has_phy_id_column = true;
    if (contains(clean, "Process id")) break;  // the second table
    const auto cells = cells_of(clean);
    if (cells.size() < 3) continue;
    const auto first = words_of(cells[0]);
    if (first.empty()) continue;
    const auto number = parse_int(first[0]);
    if (!number || *number < 0 || *number > 1'000'000) continue;
    if (is_bus_id(cells[1])) {
      if (!current || smi.npus.size() >= kMaxNpus) continue;
      Npu npu = *current;
      npu.chip = static_cast<int>(*number);
      const auto phy = first.size() > 1 ? parse_int(first[1]) : std::nullopt;
      if (phy && *phy >= 0 && *phy < 1'000'000) npu.phy_id = static_cast<int>(*phy);
      npu.bus_id = printable(cells[1], 32);
      std::tie(npu.hbm_used_mb, npu.hbm_total_mb) = last_fraction(cells[2]);
      smi.npus.push_back(std::move(npu));
    } else if (first.size() > 1) {
      current = Npu{.npu = static_cast<int>(*number), .name = printable(first[1], 40), .health = printable(cells[1], 20)};
    }
  }
  return smi;
}

std::vector<std::string> kernel_folders(std::string_view family) {
  if (family == "A2") return {"ascend910b"};
  if (family == "A3") return {"ascend910_93"};
  // The 950 was called 910_95 before it had its name.
  if (family == "950PR" || family == "950DT" || family == "Ascend350 names") return {"ascend950", "ascend910_95"};
  if (family == "310P") return {"ascend310p"};
  if (family == "310B") return {"ascend310b"};
  if (family == "910") return {"ascend910"};
  return {};
}

std::string kernel_package_hint(std::string_view family) {
  if (family == "A2") return "910b";
  if (family == "A3") return "A3 (910_93)";
  if (family == "950PR" || family == "950DT") return "950";
  return lower(family);
}

const PythonEnvironment* AscendState::python() const {
  for (const PythonEnvironment& p : pythons) {
    if (!p.torch_npu.empty()) return &p;
  }
  for (const PythonEnvironment& p : pythons) {
    if (!p.torch.empty()) return &p;
  }
  return nullptr;
}

}  // namespace pointsman::doctor
