// SPDX-License-Identifier: Apache-2.0
//
// pointsman inspect: what a checkpoint is, from its headers alone. Shows as much as it can: a config that is refused does not
// hide the tensors, nor the other way round.
#include <cstdio>
#include <map>
#include <optional>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/lockfile.h"
#include "checkpoint/model_config.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "model/binding.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "inspect";

struct DTypeSummary {
  uint64_t tensors = 0, bytes = 0, elements = 0;
};

struct ExpertSummary {
  int layers = 0, experts_per_layer = 0, first_layer = 0, last_layer = 0;
  uint64_t smallest_bytes = 0, largest_bytes = 0, total_bytes = 0;
  std::map<std::string, uint64_t> by_dtype;  // of the gate part
  int64_t intermediate = 0, hidden = 0;
};

struct Inspection {
  std::string model;
  std::optional<ModelConfig> config;
  std::unique_ptr<Checkpoint> checkpoint;
  std::map<std::string, DTypeSummary> dtypes;
  DTypeSummary total;
  std::optional<ExpertSummary> experts;
  uint64_t dense_tensors = 0, dense_device_bytes = 0;
  std::vector<std::string> notes;
  std::string lock_state = "absent", lock_digest;  // "present", "absent", "refused"
  std::vector<Status> refusals;
};

void look_at_lock(Inspection& i, ExpertCatalogue* experts) {
  const Result<LockFile> lock = read_lock_file(FileSystem::real(), i.model);
  if (lock.ok()) {
    i.lock_state = "present";
    i.lock_digest = to_hex(lock->model_digest());
    if (experts == nullptr) return;
    if (Status s = attach_digests(*lock, *experts); !s.ok()) {
      i.lock_state = "refused";
      i.refusals.push_back(std::move(s));
    }
  } else if (lock.status().code() != StatusCode::kNotFound) {
    i.lock_state = "refused";
    i.refusals.push_back(lock.status());
  }
}

ExpertSummary summarize(const ExpertCatalogue& c) {
  ExpertSummary s{.layers = c.num_layers(),
                  .experts_per_layer = c.num_experts(),
                  .first_layer = c.layer_id(0),
                  .last_layer = c.layer_id(c.num_layers() - 1),
                  .smallest_bytes = UINT64_MAX};
  for (int l = 0; l < c.num_layers(); ++l) {
    for (int e = 0; e < c.num_experts(); ++e) {
      const ExpertInfo& info = c.at(l, e);
      const uint64_t bytes = info.size_bytes();
      s.smallest_bytes = std::min(s.smallest_bytes, bytes);
      s.largest_bytes = std::max(s.largest_bytes, bytes);
      s.total_bytes += bytes;
      ++s.by_dtype[std::string(dtype_name(info.parts[0].dtype))];
    }
  }
  const ExpertPartInfo& down = c.at(0, 0).parts[static_cast<size_t>(ExpertPart::kDown)];
  s.intermediate = down.cols;
  s.hidden = down.rows;
  return s;
}

Inspection inspect(const std::string& model) {
  FileSystem& fs = FileSystem::real();
  Inspection i{.model = model};
  if (Result<ModelConfig> config = read_model_config(fs, model); config.ok()) {
    i.config = std::move(*config);
  } else {
    i.refusals.push_back(config.status());
  }
  if (Result<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::open(fs, model); checkpoint.ok()) {
    i.checkpoint = std::move(*checkpoint);
  } else {
    i.refusals.push_back(checkpoint.status());
  }
  if (i.checkpoint != nullptr) {
    for (const TensorEntry& t : i.checkpoint->tensors()) {
      for (DTypeSummary* s : {&i.total, &i.dtypes[std::string(dtype_name(t.dtype))]}) {
        s->tensors += 1;
        s->bytes += t.size_bytes;
        s->elements += static_cast<uint64_t>(t.num_elements());
      }
    }
  }
  if (i.config && i.checkpoint != nullptr) {
    Result<Binding> binding = bind_model(*i.checkpoint, *i.config);
    if (!binding.ok()) {
      i.refusals.push_back(binding.status());
      look_at_lock(i, nullptr);
      return i;
    }
    i.dense_tensors = binding->dense.size();
    i.dense_device_bytes = binding->dense_device_bytes();
    i.notes = binding->notes;
    if (binding->experts != nullptr) i.experts = summarize(*binding->experts);
    look_at_lock(i, binding->experts.get());
  } else {
    look_at_lock(i, nullptr);
  }
  return i;
}

std::string human(uint64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

void print_text(const Inspection& i) {
  std::printf("%s\n", i.model.c_str());
  if (i.config) {
    std::printf("\nconfig\n");
    for (const ModelConfig::Origin& o : i.config->origins) {
      std::printf("  %-26s %-18s %s\n", o.key.c_str(), o.value.c_str(), o.source.c_str());
    }
    for (const std::string& key : i.config->ignored_keys)
      std::printf("  %-26s %-18s without effect on the result\n", key.c_str(), "ignored");
    for (const std::string& w : i.config->warnings) std::printf("  warning: %s\n", w.c_str());
  }
  if (i.checkpoint != nullptr) {
    std::printf("\ntensors %20llu tensors %12s  %.3f G parameters\n", static_cast<unsigned long long>(i.total.tensors),
                human(i.total.bytes).c_str(), static_cast<double>(i.total.elements) * 1e-9);
    for (const auto& [name, s] : i.dtypes) {
      std::printf("  %-10s %15llu tensors %12s\n", name.c_str(), static_cast<unsigned long long>(s.tensors),
                  human(s.bytes).c_str());
    }
  }
  if (i.dense_tensors > 0) {
    std::printf("\ndense   %20llu tensors %12s  in memory\n", static_cast<unsigned long long>(i.dense_tensors),
                human(i.dense_device_bytes).c_str());
  }
  if (i.experts) {
    const ExpertSummary& e = *i.experts;
    std::printf("experts %20lld experts %12s  %d layers (%d to %d) of %d, %s each, [%lld, %lld]",
                static_cast<long long>(e.layers) * e.experts_per_layer, human(e.total_bytes).c_str(), e.layers, e.first_layer,
                e.last_layer, e.experts_per_layer, human(e.largest_bytes).c_str(), static_cast<long long>(e.intermediate),
                static_cast<long long>(e.hidden));
    for (const auto& [dtype, count] : e.by_dtype) std::printf(" %s", dtype.c_str());
    std::printf("\n");
  }
  for (const std::string& n : i.notes) std::printf("  note: %s\n", n.c_str());
  if (i.checkpoint != nullptr) {
    std::printf("\nfiles\n");
    for (const CheckpointFile& f : i.checkpoint->files())
      std::printf("  %-40s %12s\n", f.name.c_str(), human(f.info.size_bytes).c_str());
  }
  std::printf("\nlock    %s%s%s\n", i.lock_state.c_str(), i.lock_digest.empty() ? "" : ", model digest ",
              i.lock_digest.c_str());
  for (const Status& s : i.refusals) std::printf("\nREFUSED %s\n", s.to_string().c_str());
}

Json strings(const std::vector<std::string>& list) {
  Json::Array array;
  for (const std::string& s : list) array.emplace_back(s);
  return array;
}

Json experts_json(const ExpertSummary& e) {
  Json x = Json::object();
  x.set("layers", e.layers);
  x.set("experts_per_layer", e.experts_per_layer);
  x.set("first_layer", e.first_layer);
  x.set("last_layer", e.last_layer);
  x.set("bytes", e.total_bytes);
  x.set("smallest_bytes", e.smallest_bytes);
  x.set("largest_bytes", e.largest_bytes);
  x.set("intermediate_size", e.intermediate);
  x.set("hidden_size", e.hidden);
  Json dtypes = Json::object();
  for (const auto& [dtype, count] : e.by_dtype) dtypes.set(dtype, count);
  x.set("dtypes", std::move(dtypes));
  return x;
}

Json to_json(const Inspection& i) {
  Json j = Json::object();
  j.set("schema_version", 1);
  j.set("model", i.model);
  Json config = Json::array();
  if (i.config) {
    j.set("model_type", i.config->model_type);
    for (const ModelConfig::Origin& o : i.config->origins) {
      Json entry = Json::object();
      entry.set("key", o.key);
      entry.set("value", o.value);
      entry.set("source", o.source);
      config.push_back(std::move(entry));
    }
    j.set("warnings", strings(i.config->warnings));
    j.set("ignored_keys", strings(i.config->ignored_keys));
  }
  j.set("config", std::move(config));
  Json tensors = Json::object();
  tensors.set("count", i.total.tensors);
  tensors.set("bytes", i.total.bytes);
  tensors.set("parameters", i.total.elements);
  Json dtypes = Json::object();
  for (const auto& [name, s] : i.dtypes) {
    Json d = Json::object();
    d.set("count", s.tensors);
    d.set("bytes", s.bytes);
    dtypes.set(name, std::move(d));
  }
  tensors.set("dtypes", std::move(dtypes));
  j.set("tensors", std::move(tensors));
  Json dense = Json::object();
  dense.set("count", i.dense_tensors);
  dense.set("memory_bytes", i.dense_device_bytes);
  j.set("dense", std::move(dense));
  j.set("experts", i.experts ? experts_json(*i.experts) : Json());
  j.set("notes", strings(i.notes));
  Json files = Json::array();
  if (i.checkpoint != nullptr) {
    for (const CheckpointFile& f : i.checkpoint->files()) {
      Json file = Json::object();
      file.set("name", f.name);
      file.set("bytes", f.info.size_bytes);
      files.push_back(std::move(file));
    }
  }
  j.set("files", std::move(files));
  Json lock = Json::object();
  lock.set("state", i.lock_state);
  lock.set("model_digest", i.lock_digest);
  j.set("lock", std::move(lock));
  Json refusals = Json::array();
  for (const Status& s : i.refusals) {
    Json r = Json::object();
    r.set("code", status_code_name(s.code()));
    r.set("message", s.message());
    refusals.push_back(std::move(r));
  }
  j.set("refusals", std::move(refusals));
  return j;
}

}  // namespace

int run_inspect(int argc, char** argv) {
  ArgParser args(
      kName, "What a checkpoint holds, where every config value comes from, and why it would be refused. Reads headers only.",
      "  pointsman inspect MODEL\n"
      "  pointsman inspect MODEL --json | jq '.config[] | select(.key == \"rope_theta\")'\n"
      "Exit code 3 when something is refused; everything that could be read is shown all the same.\n");
  std::string model;
  bool json = false;
  LogFlags log;
  args.positional("MODEL,-m,--model", model, "Hugging Face model folder");
  args.flag("--json", json, "one JSON object");
  log.declare(args);
  if (auto code = args.parse(argc, argv)) return *code;
  if (auto code = log.apply(kName)) return *code;
  const Inspection i = inspect(model);
  if (json) {
    print_json(to_json(i));
  } else {
    print_text(i);
  }
  return i.refusals.empty() ? kExitOk : report(kName, i.refusals.front());
}

}  // namespace pointsman::cli
