// SPDX-License-Identifier: Apache-2.0
// The input describes two traces: which tensors, of which shapes and types, with which values. Comparison, diagnosis and reports take whatever
// a trace may hold: shapes that do not fit one another, ids of no expert, NaN everywhere.
#include <cstring>
#include <map>
#include <string>

#include "base/fs.h"
#include "fuzz_input.h"
#include "verify/compare_report.h"
#include "verify/diagnose.h"

namespace pm = pointsman;

namespace {

class TextFile final : public pm::File {
 public:
  explicit TextFile(const std::string& bytes) : bytes_(bytes) {}
  pm::Result<size_t> pread(std::span<std::byte> out, uint64_t offset) override {
    const size_t n = offset >= bytes_.size() ? 0 : std::min<size_t>(out.size(), bytes_.size() - offset);
    if (n > 0) std::memcpy(out.data(), bytes_.data() + offset, n);
    return n;
  }
  pm::Result<pm::FileInfo> stat() override { return pm::FileInfo{.size_bytes = bytes_.size(), .is_regular = true}; }
  void forget(uint64_t, uint64_t) override {}
  const std::string& path() const override { return path_; }

 private:
  const std::string& bytes_;
  std::string path_ = "input";
};

class TwoFiles final : public pm::FileSystem {
 public:
  std::map<std::string, std::string> files;
  pm::Result<std::unique_ptr<pm::File>> open(const std::string& path) override {
    return std::unique_ptr<pm::File>(std::make_unique<TextFile>(files.at(path)));
  }
  pm::Result<pm::FileInfo> stat(const std::string& path) override { return pm::FileInfo{.size_bytes = files.at(path).size(), .is_regular = true}; }
  pm::Result<std::vector<std::string>> list(const std::string&) override { return pm::Status(pm::StatusCode::kNotFound, "none"); }
  pm::Result<std::unique_ptr<pm::WritableFile>> create_atomic(const std::string&) override { return pm::Status(pm::StatusCode::kIo, "none"); }
};

struct Bytes {
  const uint8_t* at;
  const uint8_t* end;
  uint8_t next() { return at < end ? *at++ : 0; }
};

std::string make_trace(Bytes& in) {
  constexpr const char* kNames[] = {"embedding", "attention.input", "attention.q", "attention.k", "attention.v", "attention.q_rotated", "attention.k_rotated",
                                    "attention.context", "attention.residual", "mlp.input", "router.logits", "router.ids", "router.weights", "experts.gate",
                                    "experts.act", "experts.output", "hidden", "odd", "final_norm", "logits", "tokens"};
  constexpr const char* kTypes[] = {"F32", "F32", "F32", "I32", "BF16", "F16", "F64", "I64"};
  constexpr size_t kWidths[] = {4, 4, 4, 4, 2, 2, 8, 8};
  std::string header = "{\"__metadata__\":{\"tokens\":\"1,0,2\"}", data;
  for (const char* name : kNames) {
    const uint8_t how = in.next();
    if (how & 0x80) continue;
    const bool whole = std::strcmp(name, "embedding") == 0 || std::strcmp(name, "final_norm") == 0 || std::strcmp(name, "logits") == 0 || std::strcmp(name, "tokens") == 0;
    // Mostly of the right kind and few shapes, so that traces meet.
    const size_t type = std::strcmp(name, "router.ids") == 0 && (how & 0x40) == 0 ? 3 : how & 7;
    const uint8_t dims = in.next();
    const size_t count = 1 + dims % 3;
    size_t elements = 1;
    std::string shape;
    for (size_t d = 0; d < count; ++d) {
      const size_t n = (dims >> (2 * d + 2 > 6 ? 6 : 2 * d + 2)) % 4 + (d + 1 == count ? (how >> 3) % 4 * 8 : 0);
      elements *= n;
      shape += (d > 0 ? "," : "") + std::to_string(n);
    }
    const size_t begin = data.size();
    for (size_t i = 0; i < elements; ++i) {
      const uint8_t v = in.next();
      unsigned char bytes[8] = {};
      if (type == 3 || type == 7) {
        bytes[0] = v % 8;
        if (v > 250) std::memset(bytes, v, sizeof bytes);
      } else if (type == 6) {
        const double x = v > 250 ? std::strtod("nan", nullptr) : (v - 100) / 16.0;
        std::memcpy(bytes, &x, 8);
      } else {
        const float x = v > 253 ? std::strtof("nan", nullptr) : v > 250 ? std::strtof("inf", nullptr) : (static_cast<float>(v) - 100) / 16;
        std::memcpy(bytes, reinterpret_cast<const char*>(&x) + (kWidths[type] == 2 ? 2 : 0), kWidths[type]);
      }
      data.append(reinterpret_cast<const char*>(bytes), kWidths[type]);
    }
    header += std::string(",\"") + (whole ? "" : "layers.0.") + name + "\":{\"dtype\":\"" + kTypes[type] + "\",\"shape\":[" + shape + "],\"data_offsets\":[" +
              std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
  }
  header += "}";
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes in{data, data + size};
  constexpr const char* kProfiles[] = {"fp32", "bf16", "strict", "torch", "ascend-community", "ascend-l1"};
  const char* profile = kProfiles[in.next() % 6];
  TwoFiles fs;
  fs.files["/a"] = make_trace(in);
  fs.files["/b"] = make_trace(in);
  auto a = pm::TraceReader::open(fs, "/a"), b = pm::TraceReader::open(fs, "/b");
  pm::fuzz::expect(a.ok() && b.ok());
  auto limits = pm::compare_profile(profile, "");
  const auto c = pm::compare_traces(**a, **b, {.limits = *limits, .baseline = b->get(), .shadow = b->get()});
  if (!c.ok()) return 0;
  const auto d = pm::diagnose({.a = **a, .b = **b, .comparison = *c});
  pm::fuzz::expect(d.ok());
  // A difference is found exactly when something is named or missing.
  pm::fuzz::expect(c->ok || !c->first_divergence.empty() || !c->only_a.empty() || !c->only_b.empty());
  const pm::CompareReport report{.a = "/a", .b = "/b", .comparison = *c, .diagnosis = *d, .all = true};
  pm::compare_text(report);
  pm::compare_json(report).dump();
  pm::compare_html(report);
  pm::compare_junit(report);
  return 0;
}
