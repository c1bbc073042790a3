// SPDX-License-Identifier: Apache-2.0
#include "support/xz.h"

#include <lzma.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "base/check.h"

namespace pointsman::testing {

std::string read_xz(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  PM_CHECK(file.good(), "%s cannot be opened", path.c_str());
  const std::string packed((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  lzma_stream stream = LZMA_STREAM_INIT;
  PM_CHECK(lzma_stream_decoder(&stream, UINT64_MAX, LZMA_CONCATENATED) == LZMA_OK);
  stream.next_in = reinterpret_cast<const uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  std::string out;
  std::vector<uint8_t> chunk(1 << 20);
  lzma_ret rc = LZMA_OK;
  while (rc == LZMA_OK) {
    stream.next_out = chunk.data();
    stream.avail_out = chunk.size();
    rc = lzma_code(&stream, LZMA_FINISH);
    out.append(reinterpret_cast<const char*>(chunk.data()), chunk.size() - stream.avail_out);
  }
  lzma_end(&stream);
  PM_CHECK(rc == LZMA_STREAM_END, "%s is damaged (lzma %d)", path.c_str(), static_cast<int>(rc));
  return out;
}

uint32_t RecordReader::u32() {
  PM_CHECK(data_.size() - at_ >= 4, "a record is cut short");
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(data_[at_ + i])); };
  const uint32_t v = byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
  at_ += 4;
  return v;
}

std::string RecordReader::bytes() {
  const uint32_t n = u32();
  PM_CHECK(data_.size() - at_ >= n, "a record is cut short");
  at_ += n;
  return data_.substr(at_ - n, n);
}

std::vector<int32_t> RecordReader::ids() {
  const uint32_t n = u32();
  PM_CHECK((data_.size() - at_) / 4 >= n, "a record is cut short");
  std::vector<int32_t> out;
  for (uint32_t i = 0; i < n; ++i) out.push_back(static_cast<int32_t>(u32()));
  return out;
}

}  // namespace pointsman::testing
