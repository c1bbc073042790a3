// SPDX-License-Identifier: Apache-2.0
#include "model/weight_loader.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/checked_math.h"
#include "base/log.h"

namespace pointsman {
namespace {

void widen(const std::byte* src, DType dtype, int64_t n, float* dst) {
  if (dtype == DType::kF32) {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, src + 2 * i, 2);  // file offsets need not be aligned
    dst[i] = dtype == DType::kBF16 ? to_float(bf16{bits}) : to_float(f16{bits});
  }
}

class DenseLoader {
 public:
  DenseLoader(const Checkpoint& checkpoint, const LockFile* lock, Device& device) : checkpoint_(checkpoint), lock_(lock), device_(device) {}

  // Reads one tensor to `destination`. `stream` and `staging` are used when the device is not host_visible, else ignored.
  Status load(const DenseBinding& b, std::byte* destination, Stream* stream, std::span<std::byte> staging,
              FunctionRef<void(uint64_t)> progress) {
    const TensorEntry& entry = *b.entry;
    Sha256 hash;
    if (b.vector != nullptr) {
      std::vector<std::byte> raw(entry.size_bytes);
      std::vector<float> wide(static_cast<size_t>(entry.num_elements()));
      PM_RETURN_IF_ERROR(checkpoint_.read(entry.file_idx, entry.offset, raw));
      hash.update(raw);
      widen(raw.data(), entry.dtype, entry.num_elements(), wide.data());
      if (device_.host_visible()) {
        std::memcpy(destination, wide.data(), wide.size() * sizeof(float));
      } else {
        PM_RETURN_IF_ERROR(stream->copy_to_device(destination, wide.data(), wide.size() * sizeof(float)));
        PM_RETURN_IF_ERROR(stream->synchronize());
      }
      progress(entry.size_bytes);
    } else {
      for (uint64_t done = 0; done < entry.size_bytes;) {
        const size_t n = std::min<uint64_t>(kLoadChunkBytes, entry.size_bytes - done);
        const std::span<std::byte> chunk = device_.host_visible() ? std::span(destination + done, n) : staging.first(n);
        PM_RETURN_IF_ERROR(checkpoint_.read(entry.file_idx, entry.offset + done, chunk));
        if (lock_ != nullptr) hash.update(chunk);
        if (!device_.host_visible()) {
          PM_RETURN_IF_ERROR(stream->copy_to_device(destination + done, chunk.data(), n));
          PM_RETURN_IF_ERROR(stream->synchronize());
        }
        done += n;
        progress(n);
      }
    }
    return lock_ == nullptr ? ok_status() : check(entry, hash.finish());
  }

 private:
  Status check(const TensorEntry& entry, const Sha256Digest& found) const {
    const std::string where = format("{} ({} @ {:#x})", entry.name, checkpoint_.files()[entry.file_idx].name, entry.offset);
    const auto it = lock_->tensors.find(entry.name);
    if (it == lock_->tensors.end()) {
      return error(StatusCode::kCorrupt, "{}: no entry in {}; run 'pointsman lock' again", where, kLockFileName);
    }
    if (it->second.size_bytes != entry.size_bytes || it->second.sha256 != found) {
      return error(StatusCode::kCorrupt,
                   "{}: sha256 {} expected {}; fetch the shard again, or run 'pointsman lock --check' for the whole list", where,
                   to_hex(found), to_hex(it->second.sha256));
    }
    return ok_status();
  }

  const Checkpoint& checkpoint_;
  const LockFile* lock_;
  Device& device_;
};

}  // namespace

Status load_dense(const Checkpoint& checkpoint, Binding& binding, const LockFile* lock, Device& device, MemoryBudget& budget,
                  ThreadPool& pool, Buffer& buffer, FunctionRef<void(uint64_t)> progress) {
  PM_ASSIGN_OR_RETURN(buffer, Buffer::make(device, budget, MemoryClass::kWeights, binding.dense_device_bytes()));
  std::vector<std::byte*> destinations;
  std::byte* next = buffer.bytes();
  for (DenseBinding& b : binding.dense) {
    destinations.push_back(next);
    if (b.matrix != nullptr) b.matrix->data = next;
    if (b.vector != nullptr) *b.vector = reinterpret_cast<const float*>(next);
    next += align_up(b.device_bytes, 64);
  }
  // Tied weights: one matrix under whichever name was stored.
  ModelWeights& w = *binding.weights;
  if (w.lm_head.data == nullptr) w.lm_head = w.embed_tokens;
  if (w.embed_tokens.data == nullptr) w.embed_tokens = w.lm_head;

  DenseLoader loader(checkpoint, lock, device);
  if (!device.host_visible()) {
    PM_ASSIGN_OR_RETURN(const Charge charge, Charge::make(budget, MemoryClass::kReadBuffers, kLoadChunkBytes));
    std::vector<std::byte> staging(kLoadChunkBytes);
    PM_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device.make_stream());
    for (size_t i = 0; i < binding.dense.size(); ++i) {
      PM_RETURN_IF_ERROR(loader.load(binding.dense[i], destinations[i], stream.get(), staging, progress));
    }
    return ok_status();
  }
  std::mutex mutex;
  Status first;  // of the lowest tensor, so that the message does not depend on timing
  size_t first_index = SIZE_MAX;
  pool.parallel_for(static_cast<int64_t>(binding.dense.size()), 1, [&](int64_t begin, int64_t end) {
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      Status status = loader.load(binding.dense[i], destinations[i], nullptr, {}, progress);
      if (status.ok()) continue;
      std::lock_guard guard(mutex);
      if (i < first_index) {
        first_index = i;
        first = std::move(status);
      }
    }
  });
  return first;
}

Status hash_range(const Checkpoint& checkpoint, uint32_t file_idx, uint64_t offset, uint64_t size_bytes, Sha256& hash,
                  std::span<std::byte> chunk) {
  for (uint64_t done = 0; done < size_bytes;) {
    const std::span<std::byte> part = chunk.first(std::min<uint64_t>(chunk.size(), size_bytes - done));
    PM_RETURN_IF_ERROR(checkpoint.read(file_idx, offset + done, part));
    hash.update(part);
    done += part.size();
  }
  return ok_status();
}

}  // namespace pointsman
