// SPDX-License-Identifier: Apache-2.0
#include "doctor/machine.h"

#include <algorithm>
#include <array>

#include "base/log.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr size_t kMaxFileBytes = size_t{4} << 20;
constexpr size_t kMaxNames = 100'000;

// A captured folder must not lead out of itself, whatever its environment file says.
bool is_plain(const std::string& path) {
  if (path.empty() || path[0] != '/' || path.size() > 4096 || contains(path, std::string_view("\0", 1))) return false;
  for (const std::string_view piece : split(path, '/')) {
    if (piece == "..") return false;
  }
  return true;
}

}  // namespace

std::optional<std::string> Machine::read(const std::string& path) const {
  if (!is_plain(path)) return std::nullopt;
  const auto file = fs_->open(root_ + path);
  if (!file.ok()) return std::nullopt;
  // Kernel files say size 0 or 4096 whatever they hold: read until the end.
  std::string text;
  std::array<char, 16384> chunk;
  while (text.size() < kMaxFileBytes) {
    const auto n = (*file)->pread(std::as_writable_bytes(std::span(chunk)), text.size());
    if (!n.ok()) {
      if (n.status().code() == StatusCode::kUnavailable) continue;  // interrupted
      return std::nullopt;
    }
    if (*n == 0) break;
    text.append(chunk.data(), *n);
  }
  return text;
}

std::optional<int64_t> Machine::read_int(const std::string& path) const {
  const auto text = read(path);
  return text ? leading_int(*text) : std::nullopt;
}

std::vector<std::string> Machine::list(const std::string& path) const {
  if (!is_plain(path)) return {};
  auto names = fs_->list(root_ + path);
  if (!names.ok()) return {};
  if (names->size() > kMaxNames) names->resize(kMaxNames);
  return std::move(*names);
}

bool Machine::exists(const std::string& path) const {
  return is_plain(path) && fs_->stat(root_ + path).ok();
}

bool Machine::is_folder(const std::string& path) const {
  return is_plain(path) && fs_->list(root_ + path).ok();
}

std::optional<std::string> Machine::env(const std::string& name) const {
  const auto it = environment_.find(name);
  if (it == environment_.end()) return std::nullopt;
  return it->second;
}

const char* tool_file_name(Tool tool) {
  switch (tool) {
    case Tool::kNpuSmi: return "npu-smi_info";
    case Tool::kNvidiaSmi: return "nvidia-smi";
    case Tool::kNvidiaSmiQuery: return "nvidia-smi_query";
  }
  return "unknown";
}

CpuFeatures cpu_features_of_cpuinfo(std::string_view cpuinfo) {
  CpuFeatures f;
  if (const auto name = field(cpuinfo, "model name"))
    f.model_name = printable(trim(name->substr(std::min(name->find(':') + 1, name->size()))), 64);
  const auto flags = field(cpuinfo, "flags");
  if (!flags) return f;
  const auto words = words_of(*flags);
  const auto has = [&](std::string_view flag) { return std::find(words.begin(), words.end(), flag) != words.end(); };
  f.avx2 = has("avx2") && has("fma") && has("f16c");
  f.avx512 = f.avx2 && has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl");
  f.avx512_bf16 = f.avx512 && has("avx512_bf16");
  f.avx512_vnni = f.avx512 && has("avx512_vnni");
  return f;
}

bool is_relevant_variable(std::string_view name) {
  static constexpr std::string_view kPrefixes[] = {"ASCEND",           "CUDA_",    "GLOO_",  "HCCL_",      "NCCL_",
                                                   "OMP_NUM_THREADS",  "PYTORCH_", "TORCH_", "POINTSMAN_", "CPU_AFFINITY_CONF",
                                                   "TASK_QUEUE_ENABLE"};
  static constexpr std::string_view kNames[] = {"CONDA_PREFIX",
                                                "LD_LIBRARY_PATH",
                                                "LOCAL_RANK",
                                                "LOCAL_WORLD_SIZE",
                                                "MASTER_ADDR",
                                                "MASTER_PORT",
                                                "NVIDIA_VISIBLE_DEVICES",
                                                "RANK",
                                                "RANK_ID",
                                                "RANK_SIZE",
                                                "RANK_TABLE_FILE",
                                                "VIRTUAL_ENV",
                                                "WORLD_SIZE"};
  for (const std::string_view prefix : kPrefixes) {
    if (name.starts_with(prefix)) return true;
  }
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace pointsman::doctor
