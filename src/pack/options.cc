// SPDX-License-Identifier: Apache-2.0
#include "pack/options.h"

#include <fnmatch.h>

#include "base/json.h"
#include "base/log.h"

namespace pointsman {
namespace {

constexpr PackFormat kFormats[] = {PackFormat::kKeep, PackFormat::kBf16, PackFormat::kInt8, PackFormat::kInt8Wide, PackFormat::kMxfp8,
                                   PackFormat::kMxfp4};

std::string_view last_component(std::string_view unit) { return unit.substr(unit.rfind('.') + 1); }

bool matches(const std::string& pattern, std::string_view unit) {
  for (const std::string_view text : {unit, last_component(unit)}) {
    if (::fnmatch(pattern.c_str(), std::string(text).c_str(), FNM_NOESCAPE) == 0) return true;
  }
  return false;
}

}  // namespace

std::string_view pack_format_name(PackFormat format) {
  switch (format) {
    case PackFormat::kKeep: return "keep";
    case PackFormat::kBf16: return "bf16";
    case PackFormat::kInt8: return "int8";
    case PackFormat::kInt8Wide: return "int8-128";
    case PackFormat::kMxfp8: return "mxfp8";
    case PackFormat::kMxfp4: return "mxfp4";
  }
  return "?";
}

Result<PackFormat> parse_pack_format(std::string_view name) {
  for (const PackFormat f : kFormats) {
    if (pack_format_name(f) == name) return f;
  }
  return error(StatusCode::kInvalidArgument, "format {}: expected keep, bf16, int8, int8-128, mxfp8 or mxfp4", json_quote(name.substr(0, 64)));
}

Result<PackRule> parse_pack_rule(std::string_view text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string_view::npos || equals == 0) {
    return error(StatusCode::kInvalidArgument, "rule {}: expected UNIT=FORMAT, such as experts=mxfp4 or 'layers.0.*=bf16'", json_quote(text.substr(0, 64)));
  }
  Result<PackFormat> format = parse_pack_format(text.substr(equals + 1));
  if (!format.ok()) return format.status().with_context("rule " + std::string(text.substr(0, equals)));
  return PackRule{std::string(text.substr(0, equals)), *format};
}

PackFormat format_of_unit(const PackOptions& options, std::string_view unit) {
  for (auto rule = options.rules.rbegin(); rule != options.rules.rend(); ++rule) {
    if (matches(rule->pattern, unit)) return rule->format;
  }
  const std::string_view last = last_component(unit);
  if (last == "experts") return options.format;
  if (last == "attention" || last == "mlp" || last == "shared_expert" || last == "lm_head") {
    return options.format == PackFormat::kMxfp4 ? PackFormat::kInt8 : options.format;
  }
  if (last == "embed_tokens") return options.format == PackFormat::kBf16 ? PackFormat::kBf16 : PackFormat::kKeep;
  return PackFormat::kKeep;
}

}  // namespace pointsman
