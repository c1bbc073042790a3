// SPDX-License-Identifier: Apache-2.0
//
// quantization_config of config.json: which methods are known, and the block size that shapes cannot tell.
#include "checkpoint/config_reader.h"

namespace pointsman {
namespace {

constexpr int64_t kMaxBlock = 1 << 20;

void read_block_size(ConfigReader& r, const Json& object, const std::string& path, QuantizationConfig& q) {
  const Json* size = object.find("weight_block_size");
  if (size == nullptr || size->is_null()) return;
  const std::string at = path + ".weight_block_size";
  if (!size->is_array() || size->as_array().size() != 2) return r.fail_type(at, *size, "a list of two numbers");
  q.block_rows = static_cast<int32_t>(r.check_integer(at + "[0]", size->as_array()[0], 1, kMaxBlock));
  q.block_cols = static_cast<int32_t>(r.check_integer(at + "[1]", size->as_array()[1], 1, kMaxBlock));
  r.record("weight_block_size", format("{} x {}", q.block_rows, q.block_cols), at);
}

// What another version of pack wrote means something else: nothing is guessed.
void read_packed(ConfigReader& r, const Json& object, const std::string& path, QuantizationConfig& q) {
  const Json* version = object.find("version");
  if (version == nullptr || !version->is_int()) return r.fail_type(path + ".version", version == nullptr ? Json() : *version, "the integer 1 or 2");
  if (version->as_int() != 1 && version->as_int() != kPackedVersion) {
    return r.fail(error(StatusCode::kUnsupported, "{}.version: {}, this program reads 1 and {}; pack the model again", path, version->as_int(), kPackedVersion));
  }
  q.wide_panels = version->as_int() >= 2;
  const Json* layout = object.find("layout");
  const std::string name = layout != nullptr && layout->is_string() ? layout->as_string() : "";
  if (name != "panel32" && name != "rows") {
    return r.fail(error(StatusCode::kUnsupported, "{}.layout: {}, expected \"panel32\" or \"rows\"", path, layout == nullptr ? "absent" : brief(*layout)));
  }
  q.panels = name == "panel32";
  r.record("packed_layout", name, path + ".layout");
}

std::string text_of(const Json& object, std::string_view key) {
  const Json* v = object.find(key);
  return v != nullptr && v->is_string() ? v->as_string() : "";
}

}  // namespace

void read_quantization(ConfigReader& r, ModelConfig& c) {
  std::string path;
  if (const Json* other = r.find({"compression_config"}, &path)) {
    return r.fail(error(StatusCode::kUnsupported, "{}: quant_method {} is not supported; use the BF16, F16 or F32 checkpoint", path,
                        json_quote(text_of(*other, "quant_method").substr(0, 64))));
  }
  const Json* q = r.find({"quantization_config"}, &path);
  if (q == nullptr) return;
  if (!q->is_object()) return r.fail_type(path, *q, "an object or null");
  const std::string method = text_of(*q, "quant_method");
  const bool packed = method == kPackedMethod;
  if (!packed && method != "fp8" && method != "mxfp4" && method != "mxfp8") {
    return r.fail(error(StatusCode::kUnsupported, "{}: quant_method {} is not supported; known are fp8, mxfp4 and mxfp8, and pack's own pointsman. Use another checkpoint of the model",
                        path, method.empty() ? std::string("(not said)") : json_quote(method.substr(0, 64))));
  }
  const std::string fmt = text_of(*q, "fmt");
  if (method == "fp8" && !fmt.empty() && fmt != "e4m3" && fmt != "float8_e4m3fn") {
    return r.fail(error(StatusCode::kUnsupported, "{}.fmt: {} is not supported, expected \"e4m3\"", path, json_quote(fmt.substr(0, 64))));
  }
  c.quantization.power_of_two_scales = text_of(*q, "scale_fmt") == "ue8m0";
  c.quantization.method = method;
  r.record("quant_method", method, path + ".quant_method");
  if (packed) read_packed(r, *q, path, c.quantization);
  read_block_size(r, *q, path, c.quantization);
}

}  // namespace pointsman
