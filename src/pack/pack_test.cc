// SPDX-License-Identifier: Apache-2.0
#include "pack/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/checked_math.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/lockfile.h"
#include "model/binding.h"
#include "pack/config.h"
#include "pack/converter.h"
#include "pack/matrix_reader.h"
#include "pack/plan.h"
#include "pack/verify.h"
#include "support/faulty_fs.h"
#include "support/golden.h"
#include "support/memory_fs.h"
#include "support/safetensors_builder.h"
#include "support/sparse_model.h"
#include "support/temp_dir.h"
#include "tensor/panel_layout.h"
#include "verify/model_lock.h"

namespace pointsman {
namespace {

using ::testing::HasSubstr;
using testing::FaultyFs;
using testing::TempDir;

constexpr auto go_on = [](uint64_t, uint64_t) { return true; };

Result<PackReport> pack(const std::string& model, const std::string& out, const PackOptions& options, FileSystem& fs = FileSystem::real()) {
  return run_pack(fs, model, out, options, {.tool_version = "test", .created = "2026-01-01T00:00:00Z"}, go_on);
}

std::string golden_model(const std::string& name) { return testing::source_path("tests/golden/" + name); }

std::string bytes_of(const std::string& path) {
  auto text = read_text_file(FileSystem::real(), path, 1 << 30);
  EXPECT_TRUE(text.ok()) << text.status().to_string();
  return text.ok() ? *text : "";
}

struct Case {
  std::string model;
  PackOptions options;
  bool exact = false;
};

class PackedModel : public ::testing::TestWithParam<Case> {};

// Packed, its digests are right, every element is the source's (or near), every expert is one aligned piece, and unpacking gives the source
// back.
TEST_P(PackedModel, HoldsAgainstItsSource) {
  const Case& c = GetParam();
  const TempDir dir(TempDir::Where::kMemory);
  const std::string source = golden_model(c.model), packed = dir.file("packed"), plain = dir.file("plain");
  FileSystem& fs = FileSystem::real();
  const auto report = pack(source, packed, c.options);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(std::filesystem::exists(packed + ".partial"), false);

  const auto lock = read_lock_file(fs, packed);
  ASSERT_TRUE(lock.ok()) << lock.status().to_string();
  const auto check = check_lock(fs, packed, *lock, 1, go_on);
  ASSERT_TRUE(check.ok());
  EXPECT_THAT(check->mismatches, ::testing::IsEmpty()) << check->mismatches.front().what;
  // The digests made on the way are those of reading again, XXH3 included.
  const auto again = make_lock(fs, packed, 1, go_on);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->model_digest(), lock->model_digest());
  for (const auto& [name, entry] : again->experts) EXPECT_EQ(entry.xxh3, lock->experts.at(name).xxh3) << name;

  const auto config = read_model_config(fs, packed);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  const auto checkpoint = Checkpoint::open(fs, packed);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  const auto binding = bind_model(**checkpoint, *config);
  ASSERT_TRUE(binding.ok()) << binding.status().to_string();
  for (int l = 0; binding->experts != nullptr && l < binding->experts->num_layers(); ++l) {
    for (int e = 0; e < binding->experts->num_experts(); ++e) {
      const ExpertInfo& info = binding->experts->at(l, e);
      EXPECT_EQ(info.parts[0].offset % 4096, 0u);
      for (const ExpertPartInfo& part : info.parts) {
        if (part.size_bytes == 0) continue;
        EXPECT_EQ(part.file_idx, info.parts[0].file_idx);
        EXPECT_EQ(part.offset - info.parts[0].offset, part.slot_offset);
      }
      // An aligned read of the record does not run into the end of the file.
      EXPECT_LE(align_up(info.parts[0].offset + info.record_bytes(), 4096), (*checkpoint)->files()[info.parts[0].file_idx].info.size_bytes);
    }
  }

  const auto against = verify_packed(fs, packed, source, 2, go_on);
  ASSERT_TRUE(against.ok()) << against.status().to_string();
  EXPECT_THAT(against->mismatches, ::testing::IsEmpty());
  ASSERT_EQ(against->report.matrices.size(), report->matrices.size());
  bool all_exact = true;
  for (size_t i = 0; i < report->matrices.size(); ++i) {
    const MatrixReport &made = report->matrices[i], &found = against->report.matrices[i];
    EXPECT_EQ(made.name, found.name);
    EXPECT_EQ(made.is_exact, found.is_exact) << made.name;
    all_exact = all_exact && made.is_exact;
    if (made.is_exact) continue;
    EXPECT_NEAR(made.error.relative_rms(), found.error.relative_rms(), 1e-4 * found.error.relative_rms() + 1e-12) << made.name;
    EXPECT_LT(found.error.relative_rms(), found.to == "MXFP4" ? 0.2 : found.to == "MXFP8" ? 0.04 : 0.01) << made.name;
  }
  EXPECT_EQ(all_exact, c.exact);

  const auto unpacked = pack(packed, plain, {.unpack = true});
  ASSERT_TRUE(unpacked.ok()) << unpacked.status().to_string();
  const auto back = verify_packed(fs, plain, source, 1, go_on);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  if (c.exact) {
    EXPECT_THAT(back->mismatches, ::testing::IsEmpty());
    for (const MatrixReport& m : back->report.matrices) EXPECT_TRUE(m.is_exact) << m.name;
  }
  // The same section as the source's.
  const auto before = parse_json(bytes_of(source + "/config.json")), after = parse_json(bytes_of(plain + "/config.json"));
  ASSERT_TRUE(before.ok() && after.ok());
  const Json *q = before->find("quantization_config"), *r = after->find("quantization_config");
  EXPECT_EQ(q == nullptr || q->is_null(), r == nullptr);
  EXPECT_TRUE(q == nullptr || r == nullptr || *q == *r);
}

std::vector<Case> cases() {
  const PackOptions keep{}, rows{.panels = false}, bf16{.format = PackFormat::kBf16}, int8{.format = PackFormat::kInt8}, wide{.format = PackFormat::kInt8Wide},
      mxfp8{.format = PackFormat::kMxfp8}, mxfp4{.format = PackFormat::kMxfp4, .rules = {{"attention", PackFormat::kMxfp8}}},
      wide_rows{.format = PackFormat::kInt8Wide, .panels = false};
  return {{"qwen3_moe_base", keep, true},       {"qwen3_moe_base", rows, true},    {"qwen3_moe_bf16", bf16, true},     {"qwen3_moe_f16", bf16},
          {"qwen3_moe_base", int8},             {"qwen3_moe_fused", mxfp8},        {"qwen3_moe_shards3", mxfp4},       {"qwen3_moe_odd", int8},
          {"qwen3_moe_tied", int8},             {"qwen3_dense", mxfp4},            {"mixtral_base", mxfp4},            {"mixtral_v5fused", int8},
          {"mixtral_odd", int8},                {"gpt_oss_base", keep, true},      {"gpt_oss_bf16", bf16, true},       {"gpt_oss_mxfp4", keep, true},
          {"gpt_oss_mxfp4_odd", keep, true},    {"gpt_oss_base", mxfp4},           {"gpt_oss_mxfp4", int8},            {"deepseek_v3_base", int8},
          {"deepseek_v3_fp8", keep, true},      {"deepseek_v3_fp8_ue8m0", keep, true}, {"deepseek_v3_fp8_panels", keep, true}, {"deepseek_v3_fp8", mxfp8},     {"deepseek_v3_lite", mxfp4},
          {"deepseek_v4_fp4", keep, true},      {"deepseek_v4_native", int8},      {"deepseek_v4_v5saved", mxfp8},     {"glm4_moe_mtp", int8},
          {"minimax_m2_v5fused", mxfp8},        {"olmoe_base", int8},              {"qwen2_moe_base", mxfp4},          {"kimi_k2_base", int8},
          {"llama_rope3", int8},               {"qwen3_moe_tied", mxfp8},       {"minimax_m2_fp8", keep, true},     {"qwen2_moe_fp8fused", keep, true},
          {"mixtral_mxfp8", keep, true},       {"qwen3_moe_base", wide},        {"qwen3_moe_tied", wide},            {"gpt_oss_mxfp4", wide},
          {"gpt_oss_odd", wide},               {"deepseek_v4_native", wide},    {"qwen3_moe_base", wide_rows}};
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model + "_" + std::string(pack_format_name(info.param.options.format)) + (info.param.options.panels ? "" : "_rows");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Families, PackedModel, ::testing::ValuesIn(cases()), case_name);

// --- rules ---

TEST(PackRules, TheLastOneThatMatchesDecides) {
  PackOptions o{.format = PackFormat::kMxfp4};
  EXPECT_EQ(format_of_unit(o, "layers.3.experts"), PackFormat::kMxfp4);
  EXPECT_EQ(format_of_unit(o, "layers.3.attention"), PackFormat::kInt8);
  EXPECT_EQ(format_of_unit(o, "layers.3.router"), PackFormat::kKeep);
  EXPECT_EQ(format_of_unit(o, "lm_head"), PackFormat::kInt8);
  EXPECT_EQ(format_of_unit(o, "embed_tokens"), PackFormat::kKeep);
  for (const PackFormat f : {PackFormat::kKeep, PackFormat::kBf16, PackFormat::kInt8, PackFormat::kMxfp8}) EXPECT_EQ(format_of_unit({.format = f}, "lm_head"), f);
  for (const char* text : {"experts=int8", "layers.1*.experts=bf16", "layers.12.experts=mxfp8", "lm_head=bf16"}) {
    const auto rule = parse_pack_rule(text);
    ASSERT_TRUE(rule.ok());
    o.rules.push_back(*rule);
  }
  EXPECT_EQ(format_of_unit(o, "layers.3.experts"), PackFormat::kInt8);
  EXPECT_EQ(format_of_unit(o, "layers.11.experts"), PackFormat::kBf16);
  EXPECT_EQ(format_of_unit(o, "layers.12.experts"), PackFormat::kMxfp8);
  EXPECT_EQ(format_of_unit(o, "lm_head"), PackFormat::kBf16);
  for (const char* text : {"experts", "=int8", "experts=int4", "experts=", ""}) EXPECT_EQ(parse_pack_rule(text).status().code(), StatusCode::kInvalidArgument) << text;
}

TEST(PackRules, ThatSayNothingAreRefused) {
  const auto plan = [](PackRule rule) {
    return make_pack_plan(FileSystem::real(), golden_model("qwen3_moe_base"), {.format = PackFormat::kInt8, .rules = {std::move(rule)}}).status();
  };
  EXPECT_THAT(plan({"expert", PackFormat::kBf16}).message(), HasSubstr("no unit is called so; this model has attention, embed_tokens, experts"));
  EXPECT_THAT(plan({"embed_tokens", PackFormat::kInt8}).message(), HasSubstr("cannot be coded"));
  EXPECT_TRUE(plan({"layers.?.attention", PackFormat::kBf16}).ok());
  // 45 columns are no whole number of bytes of FP4.
  const auto odd = make_pack_plan(FileSystem::real(), golden_model("gpt_oss_odd"), {.format = PackFormat::kMxfp4});
  EXPECT_THAT(odd.status().message(), HasSubstr("--rule 'layers.0.experts=int8'"));
}

TEST(Pack, ExceptionsAreNamedInTheConfig) {
  const TempDir dir;
  const auto report = pack(golden_model("qwen3_moe_base"), dir.file("p"), {.format = PackFormat::kInt8, .rules = {{"layers.1.experts", PackFormat::kMxfp8}}});
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  const auto formats = read_packed_formats(FileSystem::real(), dir.file("p"));
  ASSERT_TRUE(formats.ok());
  EXPECT_EQ(formats->of("layers.0.experts"), "int8");
  EXPECT_EQ(formats->of("layers.1.experts"), "mxfp8");
  EXPECT_EQ(formats->of("layers.1.attention"), "int8");
  EXPECT_EQ(formats->of("lm_head"), "int8");
  EXPECT_EQ(formats->of("embed_tokens"), "keep");
}

std::vector<std::string> tensor_names(const std::string& folder) {
  std::vector<std::string> names;
  const auto checkpoint = Checkpoint::open(FileSystem::real(), folder);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  if (!checkpoint.ok()) return names;
  for (const TensorEntry& t : (*checkpoint)->tensors()) {
    if (!t.name.starts_with(kPaddingPrefix)) names.emplace_back(t.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Blocks of 128 are a format of their own: named, kept when asked for again, coded anew to blocks of 32, undone by --unpack.
TEST(Pack, Int8InBlocksOf128IsAFormatOfItsOwn) {
  const TempDir dir(TempDir::Where::kMemory);
  const std::string source = golden_model("qwen3_moe_base"), wide = dir.file("wide");
  const auto report = pack(source, wide, {.format = PackFormat::kInt8Wide});
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  const auto count = [](const PackReport& r, std::string_view to) {
    return std::count_if(r.matrices.begin(), r.matrices.end(), [&](const MatrixReport& m) { return m.to == to; });
  };
  EXPECT_GT(count(*report, "INT8-128"), 0);
  const auto formats = read_packed_formats(FileSystem::real(), wide);
  ASSERT_TRUE(formats.ok());
  EXPECT_EQ(formats->of("lm_head"), "int8-128");
  EXPECT_EQ(formats->of("layers.0.attention"), "int8-128");
  ASSERT_TRUE(pack(wide, dir.file("again"), {.format = PackFormat::kInt8Wide}).ok());
  EXPECT_EQ(bytes_of(dir.file("again/model.safetensors")), bytes_of(wide + "/model.safetensors"));
  const auto recoded = pack(wide, dir.file("narrow"), {.format = PackFormat::kInt8});
  ASSERT_TRUE(recoded.ok()) << recoded.status().to_string();
  EXPECT_EQ(count(*recoded, "INT8-128"), 0);
  EXPECT_EQ(count(*recoded, "INT8"), count(*report, "INT8") + count(*report, "INT8-128"));
  ASSERT_TRUE(pack(wide, dir.file("plain"), {.unpack = true}).ok());
  EXPECT_EQ(tensor_names(dir.file("plain")), tensor_names(source));
  EXPECT_TRUE(parse_pack_rule("experts=int8-128").ok());
  EXPECT_THAT(parse_pack_format("int8-64").status().message(), HasSubstr("int8, int8-128, mxfp8"));
}

// The head that a model with tied weights gets, and loses again when it is unpacked or packed without.
TEST(PackHead, OfTiedWeightsIsACodedCopyOfTheEmbedding) {
  using ::testing::Contains;
  using ::testing::Not;
  FileSystem& fs = FileSystem::real();
  const TempDir dir(TempDir::Where::kMemory);
  const std::string source = golden_model("qwen3_moe_tied"), a = dir.file("a"), mx = dir.file("mx"), plain = dir.file("plain"), none = dir.file("none");
  ASSERT_THAT(tensor_names(source), Not(Contains("lm_head.weight")));
  const auto report = pack(source, a, {.format = PackFormat::kInt8});
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_THAT(tensor_names(a), ::testing::IsSupersetOf({"lm_head.weight", "lm_head.weight_scale", "model.embed_tokens.weight"}));
  const auto head = std::find_if(report->matrices.begin(), report->matrices.end(), [](const MatrixReport& m) { return m.name == "lm_head.weight"; });
  ASSERT_NE(head, report->matrices.end());
  EXPECT_EQ(head->to, "INT8");
  EXPECT_GT(head->error.relative_rms(), 1e-4);
  // The embedding is still the source's, the head near it.
  const auto against = verify_packed(fs, a, source, 1, go_on);
  ASSERT_TRUE(against.ok()) << against.status().to_string();
  EXPECT_THAT(against->mismatches, ::testing::IsEmpty());
  bool seen = false;
  for (const MatrixReport& m : against->report.matrices) {
    if (m.name == "model.embed_tokens.weight") {
      EXPECT_TRUE(m.is_exact);
    }
    if (m.name != "lm_head.weight") continue;
    seen = true;
    EXPECT_LT(m.error.relative_rms(), 0.01);
    EXPECT_GT(m.error.relative_rms(), 1e-4);
  }
  EXPECT_TRUE(seen);
  // Coded anew from the embedding, not from codes: the same bytes as packed at once.
  ASSERT_TRUE(pack(a, mx, {.format = PackFormat::kKeep, .rules = {{"lm_head", PackFormat::kMxfp8}}}).ok());
  ASSERT_TRUE(pack(source, dir.file("direct"), {.format = PackFormat::kInt8, .rules = {{"lm_head", PackFormat::kMxfp8}}}).ok());
  EXPECT_EQ(bytes_of(mx + "/model.safetensors"), bytes_of(dir.file("direct/model.safetensors")));
  // A copy of it keeps the head; a rule, and unpacking, take it away.
  ASSERT_TRUE(pack(a, dir.file("b"), {}).ok());
  EXPECT_EQ(bytes_of(dir.file("b/model.safetensors")), bytes_of(a + "/model.safetensors"));
  ASSERT_TRUE(pack(a, none, {.rules = {{"lm_head", PackFormat::kBf16}}}).ok());
  EXPECT_THAT(tensor_names(none), Not(Contains("lm_head.weight")));
  ASSERT_TRUE(pack(source, dir.file("asked"), {.format = PackFormat::kInt8, .rules = {{"lm_head", PackFormat::kKeep}}}).ok());
  EXPECT_EQ(bytes_of(dir.file("asked/model.safetensors")), bytes_of(none + "/model.safetensors"));
  ASSERT_TRUE(pack(mx, plain, {.unpack = true}).ok());
  EXPECT_EQ(tensor_names(plain), tensor_names(source));
}

// One matrix that is looked up by rows stays as it is, under either name.
TEST(PackHead, ThatIsTheEmbeddingTooStaysAsItIs) {
  const TempDir dir;
  const std::string source = golden_model("qwen3_moe_tied_head_only");
  const auto report = pack(source, dir.file("p"), {.format = PackFormat::kInt8});
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  for (const MatrixReport& m : report->matrices) {
    if (m.name == "lm_head.weight") {
      EXPECT_TRUE(m.is_exact && m.layout == "rows");
    }
  }
  EXPECT_THAT(make_pack_plan(FileSystem::real(), source, {.rules = {{"lm_head", PackFormat::kInt8}}}).status().message(), HasSubstr("cannot be coded"));
}

// A head of its own beside the embedding of a "tied" model is the source's, and comes back.
TEST(PackHead, OfItsOwnComesBackWhenUnpacked) {
  const TempDir dir;
  const std::string source = golden_model("qwen3_moe_tied_different");
  ASSERT_TRUE(pack(source, dir.file("p"), {.format = PackFormat::kMxfp8}).ok());
  ASSERT_TRUE(pack(dir.file("p"), dir.file("plain"), {.unpack = true}).ok());
  EXPECT_EQ(tensor_names(dir.file("plain")), tensor_names(source));
}

TEST(PackHead, AClaimOfACopyThatCannotBeIsRefused) {
  const TempDir dir;
  ASSERT_TRUE(pack(golden_model("qwen3_moe_base"), dir.file("p"), {.format = PackFormat::kInt8}).ok());
  std::string text = bytes_of(dir.file("p/config.json"));
  const std::string key = "\"version\": 2,";
  text.replace(text.find(key), key.size(), key + " \"tied_head\": true,");
  dir.write("p/config.json", text);
  const Status s = pack(dir.file("p"), dir.file("q"), {.unpack = true}).status();
  EXPECT_EQ(s.code(), StatusCode::kCorrupt);
  EXPECT_THAT(s.message(), HasSubstr("tied_head"));
}

// Scales of wide blocks stay in rows while the codes go to panels; a matrix of several pieces does not lose them.
TEST(Converter, WideBlocksOfALargeMatrixComeBackBitForBit) {
  constexpr int64_t kRows = 4160, kCols = 1024;
  testing::MemoryFs fs;
  const auto put = [&](const std::string& dir, const std::vector<std::byte>& codes, const std::vector<std::byte>& scales) {
    testing::SafetensorsBuilder builder;
    builder.add("w", "F8_E4M3", {kRows, kCols}, codes.size(), 1);
    builder.add("s", "F32", {(kRows + 127) / 128, kCols / 128}, scales.size(), 2);
    const std::string text = builder.build();
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    fs.put(dir + "/model.safetensors", std::vector<std::byte>(bytes, bytes + text.size()));
    auto checkpoint = std::move(*Checkpoint::open(fs, dir));
    std::copy(codes.begin(), codes.end(), fs.node(dir + "/model.safetensors").bytes.begin() + static_cast<ptrdiff_t>(checkpoint->find("w")->offset));
    std::copy(scales.begin(), scales.end(), fs.node(dir + "/model.safetensors").bytes.begin() + static_cast<ptrdiff_t>(checkpoint->find("s")->offset));
    return checkpoint;
  };
  const auto range_of = [](const Checkpoint& c, const char* name) {
    const TensorEntry* t = c.find(name);
    return SourceRange{t->file_idx, t->offset, t->size_bytes};
  };
  std::vector<std::byte> codes(kRows * kCols), scales((kRows + 127) / 128 * (kCols / 128) * 4);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>((i * 2654435761u >> 13) & 0xbf);
  for (size_t i = 0; i < scales.size() / 4; ++i) {
    const float scale = 1.0f + static_cast<float>(i);
    std::memcpy(&scales[4 * i], &scale, 4);
  }
  const auto source = put("/a", codes, scales);
  MatrixJob job{.name = "w", .scale_name = "s", .data = range_of(*source, "w"), .scales = range_of(*source, "s")};
  job.from = Tensor::matrix(nullptr, DType::kF8E4M3, kRows, kCols);
  job.from.format = {.scale_dtype = DType::kF32, .block_rows = 128, .block_cols = 128};
  job.to = job.from;
  job.to.layout = WeightLayout::kPanel32;
  job.to_bytes = codes.size(), job.to_scale_bytes = scales.size();
  std::vector<std::byte> panels;
  int pieces = 0;
  QuantisationError error;
  Converter converter(*source);
  ASSERT_TRUE(converter.convert(job, [&](uint64_t offset, std::span<const std::byte> bytes) {
    EXPECT_EQ(offset, panels.size());
    panels.insert(panels.end(), bytes.begin(), bytes.end());
    ++pieces;
    return ok_status();
  }, [](uint64_t) { return true; }, error).ok());
  EXPECT_GT(pieces, 1);
  EXPECT_EQ(error.count, static_cast<uint64_t>(kRows * kCols));  // every value was looked at
  EXPECT_TRUE(std::equal(scales.begin(), scales.end(), converter.scales().begin(), converter.scales().end()));
  Weight whole = job.from;
  whole.data = codes.data(), whole.scales = scales.data();
  std::vector<std::byte> expected(codes.size()), grid(scales.size());
  to_panels(whole, expected.data(), grid.data());
  EXPECT_TRUE(panels == expected);
  EXPECT_TRUE(grid == scales);

  const auto packed = put("/b", panels, scales);
  MatrixReader reader(*packed);
  ASSERT_TRUE(reader.open(job.to, range_of(*packed, "w"), range_of(*packed, "s")).ok());
  for (int64_t first = 0; first < kRows; first += reader.piece_rows()) {
    const int64_t n = std::min(reader.piece_rows(), kRows - first);
    const auto rows = reader.read(first, n);
    ASSERT_TRUE(rows.ok());
    EXPECT_EQ(std::memcmp(rows->data, codes.data() + first * kCols, static_cast<size_t>(n * kCols)), 0);
    EXPECT_EQ(weight_value(*rows, n - 1, kCols - 1), weight_value(whole, first + n - 1, kCols - 1));
  }
  EXPECT_TRUE(std::equal(scales.begin(), scales.end(), reader.scales().begin(), reader.scales().end()));
}

// Packing what is packed keeps what was coded, and unpacking it still knows.
TEST(Pack, PackedFoldersCanBePackedAgain) {
  const TempDir dir(TempDir::Where::kMemory);
  ASSERT_TRUE(pack(golden_model("qwen3_moe_base"), dir.file("a"), {.format = PackFormat::kInt8, .panels = false}).ok());
  ASSERT_TRUE(pack(dir.file("a"), dir.file("b"), {}).ok());
  ASSERT_TRUE(pack(golden_model("qwen3_moe_base"), dir.file("c"), {.format = PackFormat::kInt8}).ok());
  EXPECT_EQ(bytes_of(dir.file("b/model.safetensors")), bytes_of(dir.file("c/model.safetensors")));
  ASSERT_TRUE(pack(dir.file("b"), dir.file("d"), {.unpack = true}).ok());
  const auto back = verify_packed(FileSystem::real(), dir.file("d"), dir.file("a"), 1, go_on);
  ASSERT_TRUE(back.ok());
  for (const MatrixReport& m : back->report.matrices) {
    EXPECT_EQ(m.to, m.from == "INT8" ? "BF16" : m.from) << m.name;
  }
  EXPECT_EQ(pack(golden_model("qwen3_moe_base"), dir.file("e"), {.unpack = true}).status().code(), StatusCode::kInvalidArgument);
}

TEST(Pack, FilesAreBoundedAndSmallFilesCopied) {
  const TempDir dir;
  const std::string source = golden_model("qwen3_moe_base");
  const auto report = pack(source, dir.file("p"), {.shard_bytes = 100'000});
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_GT(report->files, 5u);
  uint64_t files = 0;
  for (const auto& e : std::filesystem::directory_iterator(dir.file("p"))) {
    if (e.path().extension() != ".safetensors") continue;
    ++files;
    EXPECT_LE(e.file_size(), 100'000u + 3 * 4096);
  }
  EXPECT_EQ(files, report->files);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    EXPECT_EQ(bytes_of(source + "/" + name), bytes_of(dir.file("p") + "/" + name)) << name;
  }
  EXPECT_FALSE(std::filesystem::exists(dir.file("p/pack.progress.json")));
  EXPECT_FALSE(std::filesystem::exists(dir.file("p/.pointsman-partial")));
  // Everything of config.json is still there.
  const auto before = parse_json(bytes_of(source + "/config.json")), after = parse_json(bytes_of(dir.file("p/config.json")));
  for (const auto& [key, value] : before->as_object()) {
    ASSERT_NE(after->find(key), nullptr) << key;
    EXPECT_TRUE(*after->find(key) == value) << key;
  }
}

// --- what can go wrong ---

TEST(PackFaults, OutputThatExistsIsLeftAlone) {
  const TempDir dir;
  const std::string source = golden_model("qwen3_moe_base");
  std::filesystem::create_directory(dir.file("there"));
  dir.write("file", "x");
  for (const std::string& out : {dir.file("there"), dir.file("file"), source, dir.file("there/")}) {
    const Status s = pack(source, out, {}).status();
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << out;
    EXPECT_THAT(s.message(), HasSubstr("exists already"));
  }
  EXPECT_EQ(pack(source, dir.file("no/parent"), {}).status().code(), StatusCode::kNotFound);
  std::filesystem::create_directory(dir.file("x.partial"));
  dir.write("x.partial/mine", "keep");
  EXPECT_THAT(pack(source, dir.file("x"), {}).status().message(), HasSubstr("is not a folder that this program began"));
  EXPECT_EQ(bytes_of(dir.file("x.partial/mine")), "keep");
}

// Each call to the file system fails once, in every way: the error is named, nothing is under the name, and going on gives the folder of an
// undisturbed run.
TEST(PackFaults, EveryCallMayFail) {
  const TempDir dir(TempDir::Where::kMemory);
  const std::string source = golden_model("qwen3_moe_base");
  const PackOptions options{.format = PackFormat::kInt8, .shard_bytes = 120'000, .threads = 1};
  ASSERT_TRUE(pack(source, dir.file("whole"), options).ok());
  const std::string expected = bytes_of(dir.file("whole/pointsman.lock.json"));
  using Op = FaultyFs::Op;
  uint64_t tried = 0;
  for (const auto& [op, fault, step] : {std::tuple{Op::kWrite, FaultyFs::Fault::kNoSpace, 37}, {Op::kCommit, FaultyFs::Fault::kIoError, 1},
                                        {Op::kCreate, FaultyFs::Fault::kNoSpace, 1}, {Op::kRead, FaultyFs::Fault::kIoError, 61}}) {
    for (uint64_t n = 0;; n += static_cast<uint64_t>(step)) {
      const std::string out = dir.file("out");
      FaultyFs fs(FileSystem::real());
      fs.fail(op, n, fault);
      const auto report = pack(source, out, options, fs);
      if (report.ok()) {
        std::filesystem::remove_all(out);
        break;  // the fault was never met
      }
      ++tried;
      EXPECT_EQ(report.status().code(), StatusCode::kIo) << report.status().to_string();
      EXPECT_FALSE(std::filesystem::exists(out));
      PackOptions resume = options;
      resume.resume = true;
      const auto second = pack(source, out, resume);
      ASSERT_TRUE(second.ok()) << second.status().to_string();
      EXPECT_EQ(bytes_of(out + "/pointsman.lock.json"), expected);
      EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
      std::filesystem::remove_all(out);
    }
  }
  EXPECT_GT(tried, 25u);
}

TEST(PackFaults, ResumeIsForTheSameSourceAndOptions) {
  const TempDir dir;
  const std::string source = golden_model("qwen3_moe_base"), out = dir.file("out");
  PackOptions options{.format = PackFormat::kInt8, .shard_bytes = 120'000, .threads = 1};
  FaultyFs fs(FileSystem::real());
  fs.fail(FaultyFs::Op::kCommit, 4, FaultyFs::Fault::kIoError);
  const Status s = pack(source, out, options, fs).status();
  EXPECT_THAT(s.message(), HasSubstr("2 complete files are kept in"));
  options.resume = true;
  PackOptions other = options;
  other.format = PackFormat::kMxfp8;
  EXPECT_THAT(pack(source, out, other).status().message(), HasSubstr("another source or other options"));
  const auto report = pack(source, out, options);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_GT(report->resumed_bytes, 0u);
  EXPECT_LT(report->resumed_bytes, report->source_bytes);
  // Errors of what was packed before are in the report, too.
  for (const MatrixReport& m : report->matrices) EXPECT_GT(m.error.count, 0u) << m.name;
}

TEST(PackFaults, InterruptedWorkGoesOn) {
  const TempDir dir;
  const std::string source = golden_model("qwen3_moe_base"), out = dir.file("out");
  PackOptions options{.format = PackFormat::kMxfp4, .shard_bytes = 100'000};
  const Status s = run_pack(FileSystem::real(), source, out, options, {}, [](uint64_t done, uint64_t total) { return done < total / 2; }).status();
  EXPECT_EQ(s.code(), StatusCode::kUnavailable) << s.to_string();
  EXPECT_FALSE(std::filesystem::exists(out));
  options.resume = true;
  ASSERT_TRUE(pack(source, out, options).ok());
}

// kill -9 at 24 moments of a run, and again and again of a run that goes on: nothing under the name, or all of it.
TEST(PackFaults, KilledAtAnyTimeLeavesNothingOrEverything) {
  testing::SparseModel model;
  model.add("model.embed_tokens.weight", {256, 256});
  model.add("lm_head.weight", {256, 256});
  model.add("model.norm.weight", {256});
  for (int l = 0; l < 2; ++l) {
    const std::string at = "model.layers." + std::to_string(l) + ".";
    for (const char* name : {"input_layernorm", "post_attention_layernorm"}) model.add(at + name + ".weight", {256});
    for (const char* name : {"q_norm", "k_norm"}) model.add(at + "self_attn." + name + ".weight", {64});
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) model.add(at + "self_attn." + name + ".weight", {256, 256});
    model.add(at + "mlp.gate.weight", {16, 256});
    for (int e = 0; e < 16; ++e) {
      for (const char* name : {"gate_proj", "up_proj"}) model.add(at + "mlp.experts." + std::to_string(e) + "." + name + ".weight", {512, 256});
      model.add(at + "mlp.experts." + std::to_string(e) + ".down_proj.weight", {256, 512});
    }
  }
  const TempDir dir(TempDir::Where::kMemory);
  ASSERT_TRUE(model.write(dir, R"({"model_type":"qwen3_moe","hidden_size":256,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":4,
    "head_dim":64,"intermediate_size":512,"moe_intermediate_size":512,"num_experts":16,"num_experts_per_tok":2,"vocab_size":256})", 2));
  const std::string out = dir.file("out");
  PackOptions options{.format = PackFormat::kInt8, .shard_bytes = 1 << 20};
  // Kills itself at its n-th piece of work, or is killed after a time: then writing of the small files and renaming are met, too.
  std::atomic<uint64_t> pieces{0};
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(run_pack(FileSystem::real(), dir.path(), out, options, {.tool_version = "test", .created = "2026-01-01T00:00:00Z"},
                       [&](uint64_t, uint64_t) { return ++pieces > 0; }).ok());
  const auto whole = std::chrono::steady_clock::now() - start;
  const std::string expected = bytes_of(out + "/pointsman.lock.json");
  std::filesystem::remove_all(out);
  const auto run_child = [&](uint64_t last_piece, std::chrono::nanoseconds after) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::atomic<uint64_t> done{0};
      const auto report = run_pack(FileSystem::real(), dir.path(), out, options, {.tool_version = "test", .created = "2026-01-01T00:00:00Z"},
                                   [&](uint64_t, uint64_t) {
                                     if (++done == last_piece) ::raise(SIGKILL);
                                     return true;
                                   });
      ::_exit(report.ok() ? 0 : 1);
    }
    if (last_piece == 0) {
      std::this_thread::sleep_for(after);
      ::kill(child, SIGKILL);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) != 0);
    return !WIFEXITED(status);
  };
  const auto expect_whole = [&] {
    EXPECT_EQ(bytes_of(out + "/pointsman.lock.json"), expected);
    const auto lock = read_lock_file(FileSystem::real(), out);
    ASSERT_TRUE(lock.ok());
    EXPECT_THAT(check_lock(FileSystem::real(), out, *lock, 1, go_on)->mismatches, ::testing::IsEmpty());
  };
  int killed = 0;
  for (int i = 0; i < 24; ++i) {
    options.resume = false;
    killed += i % 2 == 0 ? run_child(1 + pieces * static_cast<uint64_t>(i) / 24, {}) : run_child(0, whole * i / 21);
    if (std::filesystem::exists(out)) {
      expect_whole();
    } else {
      options.resume = true;
      ASSERT_TRUE(pack(dir.path(), out, options).ok());
      expect_whole();
    }
    std::filesystem::remove_all(out);
    std::filesystem::remove_all(out + ".partial");
  }
  EXPECT_GE(killed, 12);
  // Short steps: each run completes a file or two.
  options.resume = true;
  for (uint64_t i = 0; i < 60 && !std::filesystem::exists(out); ++i) run_child(pieces / 5 + pieces * i / 40, {});
  expect_whole();
}

TEST(PackFaults, WeightsThatAreNotFiniteAreRefusedByName) {
  {
    // A code that stands for NaN is no number either, also where codes are kept.
    const TempDir dir;
    const std::string model = dir.file("m"), name = "model.layers.1.mlp.experts.3.up_proj.weight";
    std::filesystem::copy(golden_model("deepseek_v3_fp8"), model);
    const auto checkpoint = Checkpoint::open(FileSystem::real(), model);
    ASSERT_TRUE(checkpoint.ok());
    const TensorEntry* t = (*checkpoint)->find(name);
    ASSERT_NE(t, nullptr);
    std::fstream file(model + "/" + (*checkpoint)->files()[t->file_idx].name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(t->offset) + 9 * t->shape[1] + 11);
    file.put(0x7f);
    file.close();
    const Status s = pack(model, dir.file("p"), {}).status();
    EXPECT_EQ(s.code(), StatusCode::kCorrupt);
    EXPECT_THAT(s.message(), HasSubstr(name + ": element [9, 11] is nan"));
  }
  for (const PackFormat f : {PackFormat::kKeep, PackFormat::kBf16, PackFormat::kInt8}) {
    const TempDir dir;
    const std::string model = dir.file("m");
    std::filesystem::copy(golden_model("qwen3_moe_base"), model);
    const auto checkpoint = Checkpoint::open(FileSystem::real(), model);
    ASSERT_TRUE(checkpoint.ok());
    const TensorEntry* t = (*checkpoint)->find("model.layers.1.mlp.experts.3.up_proj.weight");
    ASSERT_NE(t, nullptr);
    std::fstream file(model + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(t->offset) + 4 * (5 * t->shape[1] + 7));
    const float nan = std::numeric_limits<float>::quiet_NaN();
    file.write(reinterpret_cast<const char*>(&nan), 4);
    file.close();
    const Status s = pack(model, dir.file("p"), {.format = f}).status();
    EXPECT_EQ(s.code(), StatusCode::kCorrupt);
    EXPECT_THAT(s.message(), HasSubstr("model.layers.1.mlp.experts.3.up_proj.weight: element [5, 7] is nan"));
    EXPECT_FALSE(std::filesystem::exists(dir.file("p")));
    EXPECT_FALSE(std::filesystem::exists(dir.file("p.partial")));
  }
}

// One flipped bit is a mismatch of the digest, and of the element.
TEST(PackFaults, VerifyFindsADamagedElement) {
  const TempDir dir;
  const std::string source = golden_model("qwen3_moe_bf16"), out = dir.file("p");
  ASSERT_TRUE(pack(source, out, {.format = PackFormat::kBf16}).ok());
  uint64_t offset = 0;
  {
    const auto checkpoint = Checkpoint::open(FileSystem::real(), out);
    ASSERT_TRUE(checkpoint.ok());
    const TensorEntry* t = (*checkpoint)->find("model.layers.0.mlp.experts.2.down_proj.weight");
    ASSERT_NE(t, nullptr);
    offset = t->offset + 101;
  }
  FaultyFs fs(FileSystem::real());
  fs.flip(out + "/model.safetensors", offset, 0x10);
  const auto lock = read_lock_file(fs, out);
  const auto check = check_lock(fs, out, *lock, 1, go_on);
  ASSERT_EQ(check->mismatches.size(), 1u);
  EXPECT_EQ(check->mismatches[0].name, "layers.0.experts.2");
  const auto against = verify_packed(fs, out, source, 1, go_on);
  ASSERT_TRUE(against.ok());
  ASSERT_EQ(against->mismatches.size(), 1u);
  EXPECT_THAT(against->mismatches[0], HasSubstr("model.layers.0.mlp.experts.2.down_proj.weight: element ["));
  EXPECT_EQ(verify_packed(fs, out, golden_model("mixtral_base"), 1, go_on).status().code(), StatusCode::kInvalidArgument);
}

TEST(PackReport, AnExpertOutOfLineIsNamed) {
  PackReport report;
  for (int e = 0; e < 8; ++e) {
    MatrixReport m{.name = "model.layers.0.mlp.experts." + std::to_string(e) + ".up_proj.weight", .unit = "layers.0.experts"};
    m.error.count = 100;
    m.error.value_squares = e == 5 ? 100.0 * 0.02 * 0.02 * 81 : 100.0 * 0.02 * 0.02;
    report.matrices.push_back(m);
  }
  report.matrices[2].error.value_squares = std::numeric_limits<double>::quiet_NaN();
  report.matrices[3].error.value_squares = 0;
  find_abnormal_experts(report);
  ASSERT_EQ(report.abnormal.size(), 3u);
  std::swap(report.abnormal[0], report.abnormal[2]);
  EXPECT_THAT(report.abnormal[1], HasSubstr("experts.3.up_proj.weight: root mean square 0; weights are usually"));
  EXPECT_THAT(report.abnormal[2], HasSubstr("experts.2.up_proj.weight: root mean square nan"));
  EXPECT_THAT(report.abnormal[0], HasSubstr("experts.5.up_proj.weight: root mean square 0.18, the median of its layer is 0.02"));
}

TEST(PackedSection, OtherVersionsAndLayoutsAreRefused) {
  const TempDir dir;
  ASSERT_TRUE(pack(golden_model("qwen3_moe_base"), dir.file("p"), {}).ok());
  const std::string text = bytes_of(dir.file("p/config.json"));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos);
    changed.replace(at, from.size(), to);
    dir.write("p/config.json", changed);
    return read_model_config(FileSystem::real(), dir.file("p")).status();
  };
  EXPECT_TRUE(with("\"version\": 2", "\"version\": 2").ok());
  EXPECT_THAT(with("\"version\": 2", "\"version\": 3").message(), HasSubstr("this program reads 1 and 2"));
  EXPECT_FALSE(with("\"version\": 2,", "").ok());
  EXPECT_THAT(with("panel32", "panel64").message(), HasSubstr("expected \"panel32\" or \"rows\""));
  EXPECT_FALSE(with("\"layout\": \"panel32\",", "").ok());
}

}  // namespace
}  // namespace pointsman
