// SPDX-License-Identifier: Apache-2.0
// The input is a safetensors file. What is accepted must tile the file: spans in order, inside, of the size their shape says.
#include <algorithm>
#include <cstring>
#include <string>

#include "checkpoint/safetensors.h"
#include "fuzz_input.h"

namespace pm = pointsman;

namespace {
class BytesFile final : public pm::File {
 public:
  explicit BytesFile(std::string_view bytes) : bytes_(bytes) {}
  pm::Result<size_t> pread(std::span<std::byte> out, uint64_t offset) override {
    const size_t n = offset >= bytes_.size() ? 0 : std::min<size_t>(out.size(), bytes_.size() - offset);
    if (n > 0) std::memcpy(out.data(), bytes_.data() + offset, n);
    return n;
  }
  pm::Result<pm::FileInfo> stat() override { return pm::FileInfo{.size_bytes = bytes_.size(), .is_regular = true}; }
  void forget(uint64_t, uint64_t) override {}
  const std::string& path() const override { return path_; }

 private:
  std::string_view bytes_;
  std::string path_ = "input";
};

void check(pm::SafetensorsHeader header, uint64_t start, uint64_t end) {
  std::sort(header.entries.begin(), header.entries.end(),
            [](const auto& a, const auto& b) { return std::pair(a.offset, a.size_bytes) < std::pair(b.offset, b.size_bytes); });
  for (const pm::SafetensorsEntry& e : header.entries) {
    unsigned __int128 bits = static_cast<unsigned>(pm::dtype_bits(e.dtype));
    for (const int64_t dim : e.shape) bits *= static_cast<uint64_t>(dim);
    pm::fuzz::expect(pm::is_plain_tensor_name(e.name) && e.offset == start && bits == static_cast<unsigned __int128>(e.size_bytes) * 8);
    start += e.size_bytes;
  }
  pm::fuzz::expect(start == end);
}
}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  BytesFile file(pm::fuzz::text_of(data, size));
  if (auto header = pm::read_safetensors_header(file, size, 1 << 20); header.ok()) {
    uint64_t length = 0;
    std::memcpy(&length, data, 8);
    check(*std::move(header), 8 + length, size);
  }
  // The same text as a header alone, in front of as many bytes as its first eight say.
  if (size < 8) return 0;
  uint64_t payload = 0;
  std::memcpy(&payload, data, 8);
  payload &= (uint64_t{1} << 62) - 1;
  if (auto header = pm::parse_safetensors_header(pm::fuzz::text_of(data + 8, size - 8), payload, size); header.ok()) {
    check(*std::move(header), size, size + payload);
  }
  return 0;
}
