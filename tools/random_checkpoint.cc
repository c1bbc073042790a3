// SPDX-License-Identifier: Apache-2.0
#include "tools/random_checkpoint.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>

#include "base/fs.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "checkpoint/safetensors_writer.h"
#include "tools/random_values.h"

namespace pointsman::tools {
namespace {

Status write_text(const std::string& path, const std::string& text) {
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, FileSystem::real().create_atomic(path));
  PM_RETURN_IF_ERROR(file->pwrite(std::as_bytes(std::span(text)), 0));
  return file->commit();
}

class Progress {
 public:
  Progress(uint64_t total, bool enabled) : total_(total), enabled_(enabled) {}
  void add(uint64_t bytes) {
    done_ += bytes;
    const double s = seconds();
    if (!enabled_ || s < shown_ + 1) return;
    shown_ = s;
    const double rate = static_cast<double>(done_) / s;
    std::fprintf(stderr, "%s of %s, %.0f MB/s, %.0f s left\n", human_bytes(static_cast<double>(done_)).c_str(),
                 human_bytes(static_cast<double>(total_)).c_str(), rate * 1e-6, static_cast<double>(total_ - done_) / rate);
  }
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  const uint64_t total_;
  const bool enabled_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  uint64_t done_ = 0;
  double shown_ = 0;
};

struct Block {
  size_t tensor;
  uint64_t idx;
};

// Tensors [begin, end) of the model as one file. Threads make blocks; one at a time hands its block to the writer.
Status write_shard(const std::string& path, const RandomModel& model, size_t begin, size_t end, const WriteOptions& o, ThreadPool& pool, Progress& progress) {
  std::vector<SafetensorsWriter::Declaration> declared;
  std::vector<Block> blocks;
  for (size_t i = begin; i < end; ++i) {
    const RandomTensor& t = model.tensors[i];
    declared.push_back({t.name, t.dtype, t.shape});
    for (uint64_t b = 0; b * kBlockElements < t.num_elements(); ++b) blocks.push_back({i, b});
  }
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer, SafetensorsWriter::create(FileSystem::real(), path, std::move(declared), {}));
  if (o.sparse) {
    for (size_t i = begin; i < end; ++i) PM_RETURN_IF_ERROR(writer->leave_hole(model.tensors[i].name));
    return writer->commit();
  }
  std::mutex mutex;
  Status failure;
  pool.parallel_for(static_cast<int64_t>(blocks.size()), 1, [&](int64_t first, int64_t last) {
    std::vector<std::byte> buffer;
    for (int64_t k = first; k < last; ++k) {
      const Block& b = blocks[static_cast<size_t>(k)];
      const RandomTensor& t = model.tensors[b.tensor];
      const uint64_t element_bytes = static_cast<uint64_t>(dtype_bits(t.dtype)) / 8, from = b.idx * kBlockElements;
      buffer.resize(std::min(kBlockElements, t.num_elements() - from) * element_bytes);
      fill_random(t, o.seed, b.tensor, b.idx, buffer);
      if (t.edit) t.edit(from, buffer);
      std::lock_guard lock(mutex);
      if (failure.ok()) failure = writer->write(t.name, from * element_bytes, buffer);
      progress.add(buffer.size());
    }
  });
  PM_RETURN_IF_ERROR(failure);
  return writer->commit();
}

}  // namespace

Status write_random_checkpoint(const std::string& dir, const RandomModel& model, const WriteOptions& o) {
  // Shards end where the next tensor would go beyond their size.
  std::vector<size_t> ends;
  uint64_t shard = 0, total = 0;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const uint64_t bytes = model.tensors[i].size_bytes();
    if (shard > 0 && shard + bytes > o.shard_bytes) ends.push_back(i), shard = 0;
    shard += bytes;
    total += bytes;
  }
  ends.push_back(model.tensors.size());
  ThreadPool pool(o.threads, false);
  Progress progress(total, o.progress && !o.sparse);
  Json map = Json::object();
  for (size_t s = 0, begin = 0; s < ends.size(); begin = ends[s++]) {
    const std::string name = ends.size() == 1 ? "model.safetensors" : format("model-{:05}-of-{:05}.safetensors", s + 1, ends.size());
    PM_RETURN_IF_ERROR(write_shard(dir + "/" + name, model, begin, ends[s], o, pool, progress));
    for (size_t i = begin; i < ends[s]; ++i) map.as_object().emplace_back(model.tensors[i].name, name);
  }
  if (ends.size() > 1) {
    Json index = Json::object();
    index.set("metadata", Json::object()).set("total_size", total);
    index.set("weight_map", map);
    PM_RETURN_IF_ERROR(write_text(dir + "/model.safetensors.index.json", index.dump(1)));
  }
  PM_RETURN_IF_ERROR(write_text(dir + "/config.json", model.config.dump(2) + "\n"));
  // The label of a checkpoint that was here before would be wrong.
  const std::string label = dir + "/routing.json";
  if (model.label.is_null()) {
    std::remove(label.c_str());
  } else {
    PM_RETURN_IF_ERROR(write_text(label, model.label.dump(2) + "\n"));
  }
  std::printf("%s: %zu tensors, %zu shards, %s in %.1f s\n", dir.c_str(), model.tensors.size(), ends.size(), human_bytes(static_cast<double>(total)).c_str(),
              progress.seconds());
  return ok_status();
}

}  // namespace pointsman::tools
