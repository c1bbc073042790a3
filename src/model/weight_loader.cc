// SPDX-License-Identifier: Apache-2.0
#include "model/weight_loader.h"

#include <algorithm>
#include <cmath>
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

// Ids to 32 bits; the index of the first that is not in [0, limit), or -1.
int64_t narrow(const std::byte* src, DType dtype, int64_t n, int64_t limit, int32_t* dst) {
  for (int64_t i = 0; i < n; ++i) {
    int64_t id = 0;
    if (dtype == DType::kI64) {
      std::memcpy(&id, src + 8 * i, 8);
    } else {
      int32_t narrow_id;
      std::memcpy(&narrow_id, src + 4 * i, 4);
      id = narrow_id;
    }
    if (id < 0 || id >= limit) return i;
    dst[i] = static_cast<int32_t>(id);
  }
  return -1;
}

class DenseLoader {
 public:
  DenseLoader(const Checkpoint& checkpoint, const LockFile* lock, Device& device) : checkpoint_(checkpoint), lock_(lock), device_(device) {}

  // Reads one tensor to `destination`. `stream` and `staging` are used when the device is not host_visible, else ignored.
  Status load(const DenseBinding& b, std::byte* destination, Stream* stream, std::span<std::byte> staging,
              FunctionRef<void(uint64_t)> progress) {
    const TensorEntry& entry = *b.entry;
    Sha256 hash;
    if (b.vector != nullptr || b.table != nullptr) {
      PM_RETURN_IF_ERROR(load_converted(b, destination, stream, hash, progress));
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
    return lock_ == nullptr ? ok_status() : check_tensor_digest(checkpoint_, entry, *lock_, hash.finish());
  }

 private:
  // Vectors and tables, which the device holds in another dtype than the file: piece by piece.
  Status load_converted(const DenseBinding& b, std::byte* destination, Stream* stream, Sha256& hash, FunctionRef<void(uint64_t)> progress) {
    const TensorEntry& entry = *b.entry;
    const size_t element = static_cast<size_t>(dtype_bits(entry.dtype)) / 8;
    const int64_t total = entry.num_elements(), at_once = std::min<int64_t>(total, static_cast<int64_t>(kLoadChunkBytes / 8));
    std::vector<std::byte> raw(static_cast<size_t>(at_once) * element);
    std::vector<int32_t> ids(b.table != nullptr ? static_cast<size_t>(at_once) : 0);
    std::vector<float> wide(b.table != nullptr ? 0 : static_cast<size_t>(at_once));
    for (int64_t done = 0; done < total;) {
      const int64_t n = std::min(at_once, total - done);
      const std::span<std::byte> piece = std::span(raw).first(static_cast<size_t>(n) * element);
      PM_RETURN_IF_ERROR(checkpoint_.read(entry.file_idx, entry.offset + static_cast<uint64_t>(done) * element, piece));
      hash.update(piece);
      const void* converted = ids.data();
      if (b.table != nullptr) {
        if (const int64_t bad = narrow(piece.data(), entry.dtype, n, b.table_limit, ids.data()); bad >= 0) {
          return error(StatusCode::kCorrupt, "{}: element {} is outside 0 to {}; the tensor does not belong to this config.json", entry.name, done + bad,
                       b.table_limit - 1);
        }
      } else {
        widen(piece.data(), entry.dtype, n, wide.data());
        const auto bad = std::find_if(wide.begin(), wide.begin() + n, [](float v) { return !std::isfinite(v); });
        if (b.must_be_finite && bad != wide.begin() + n) {
          return error(StatusCode::kCorrupt, "{}: element {} is {}, expected a finite number; the weights are broken: fetch the shard again",
                       entry.name, done + (bad - wide.begin()), *bad);
        }
        converted = wide.data();
      }
      const size_t bytes = static_cast<size_t>(n) * 4;
      std::byte* const to = destination + static_cast<size_t>(done) * 4;
      if (device_.host_visible()) {
        std::memcpy(to, converted, bytes);
      } else {
        PM_RETURN_IF_ERROR(stream->copy_to_device(to, converted, bytes));
        PM_RETURN_IF_ERROR(stream->synchronize());
      }
      done += n;
      progress(piece.size());
    }
    return ok_status();
  }

  const Checkpoint& checkpoint_;
  const LockFile* lock_;
  Device& device_;
};

}  // namespace

Status check_tensor_digest(const Checkpoint& checkpoint, const TensorEntry& entry, const LockFile& lock, const Sha256Digest& found) {
  const std::string where = format("{} ({} @ {:#x})", entry.name, checkpoint.files()[entry.file_idx].name, entry.offset);
  const auto it = lock.tensors.find(entry.name);
  if (it == lock.tensors.end()) {
    return error(StatusCode::kCorrupt, "{}: no entry in {}; run 'pointsman lock' again", where, kLockFileName);
  }
  if (it->second.size_bytes != entry.size_bytes || it->second.sha256 != found) {
    return error(StatusCode::kCorrupt,
                 "{}: sha256 {} expected {}; fetch the shard again, or run 'pointsman lock --check' for the whole list", where,
                 to_hex(found), to_hex(it->second.sha256));
  }
  return ok_status();
}

namespace {

// Panels are read whole.
int64_t rows_together(const DenseBinding& b) { return b.weight != nullptr && b.weight->layout == WeightLayout::kPanel32 ? kPanelRows : 1; }

}  // namespace

StreamedMatrix::Cost on_demand_cost(const Binding& binding, bool host_visible) {
  StreamedMatrix::Cost total;
  for (const DenseBinding& b : binding.dense) {
    if (!b.on_demand) continue;
    const StreamedMatrix::Cost one = StreamedMatrix::cost(*b.entry, binding.is_head(b), host_visible, rows_together(b));
    total.read_buffer_bytes += one.read_buffer_bytes;
    total.table_bytes += one.table_bytes;
    total.stack_bytes += one.stack_bytes;
  }
  return total;
}

Result<std::vector<std::unique_ptr<StreamedMatrix>>> open_on_demand(const Checkpoint& checkpoint, Binding& binding,
                                                                    const LockFile* lock, Device& device, MemoryBudget& budget,
                                                                    FunctionRef<void(uint64_t)> progress) {
  ModelWeights& w = *binding.weights;
  std::vector<std::unique_ptr<StreamedMatrix>> all;
  for (const DenseBinding& b : binding.dense) {
    if (!b.on_demand) continue;
    PM_ASSIGN_OR_RETURN(std::unique_ptr<StreamedMatrix> matrix, StreamedMatrix::open(device, budget, checkpoint, *b.entry, lock,
                                                                                     binding.is_head(b), progress, rows_together(b)));
    if (binding.is_embedding(b)) w.embed_on_demand = matrix.get();
    if (binding.is_head(b)) w.head_on_demand = matrix.get();
    all.push_back(std::move(matrix));
  }
  return all;
}

Status load_dense(const Checkpoint& checkpoint, Binding& binding, const LockFile* lock, Device& device, MemoryBudget& budget,
                  ThreadPool& pool, Buffer& buffer, FunctionRef<void(uint64_t)> progress) {
  PM_ASSIGN_OR_RETURN(buffer, Buffer::make(device, budget, MemoryClass::kWeights, binding.dense_device_bytes()));
  std::vector<std::byte*> destinations;  // null: stays on disk
  std::byte* next = buffer.bytes();
  for (DenseBinding& b : binding.dense) {
    if (b.on_demand) {
      destinations.push_back(nullptr);
      continue;
    }
    destinations.push_back(next);
    if (b.matrix != nullptr) b.matrix->data = next;
    if (b.scales != nullptr) *b.scales = next;
    if (b.vector != nullptr) *b.vector = reinterpret_cast<const float*>(next);
    if (b.table != nullptr) *b.table = reinterpret_cast<const int32_t*>(next);
    next += align_up(b.device_bytes, 64);
  }
  // Tied weights: one matrix under whichever name was stored.
  for (const DenseBinding& b : binding.dense) {
    if (binding.is_embedding(b) && binding.is_head(b)) binding.weights->embed_tokens = binding.weights->lm_head = *b.matrix;
  }

  DenseLoader loader(checkpoint, lock, device);
  if (!device.host_visible()) {
    PM_ASSIGN_OR_RETURN(const Charge charge, Charge::make(budget, MemoryClass::kReadBuffers, kLoadChunkBytes));
    std::vector<std::byte> staging(kLoadChunkBytes);
    PM_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device.make_stream());
    for (size_t i = 0; i < binding.dense.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      PM_RETURN_IF_ERROR(loader.load(binding.dense[i], destinations[i], stream.get(), staging, progress));
    }
    return ok_status();
  }
  std::mutex mutex;
  Status first;  // of the lowest tensor, so that the message does not depend on timing
  size_t first_index = SIZE_MAX;
  pool.parallel_for(static_cast<int64_t>(binding.dense.size()), 1, [&](int64_t begin, int64_t end) {
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      if (destinations[i] == nullptr) continue;
      Status status = loader.load(binding.dense[i], destinations[i], nullptr, {}, progress);
      if (status.ok()) continue;
      std::lock_guard guard(mutex);
      if (i < first_index) {
        first_index = i;
        first = std::move(status);
      }
    }
  });
  if (first.ok()) {
    for (const DenseBinding& b : binding.dense) {
      if (b.coded == nullptr || b.coded->data == nullptr) continue;  // the codes of a head may be on disk
      if (const std::string odd = magnitude_problem(*b.coded); !odd.empty()) log_warning("{}: {}", b.entry->name, odd);
    }
  }
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
