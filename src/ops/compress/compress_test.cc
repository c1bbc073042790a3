// SPDX-License-Identifier: Apache-2.0
#include "ops/compress/compress.h"

#include <algorithm>
#include <complex>
#include <numeric>

#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::all_same;
using testing::kernel_tables;
using testing::make_runners;
using testing::TestMatrix;

constexpr int64_t kTokens = 41;

struct Pool {
  int64_t ratio, dim;
  bool overlap;
  int64_t width() const { return overlap ? 2 * dim : dim; }
  int64_t ring_rows() const { return (overlap ? 2 : 1) * ratio - 1; }  // the smallest that is allowed
  int64_t entries() const { return kTokens / ratio; }
};

struct PoolInput {
  TestMatrix<float> a, gate, ape, norm, cos, sin;
  PoolInput(const Pool& p, std::mt19937_64& rng)
      : a(kTokens, p.width(), 1, 2), gate(kTokens, p.width(), 2, 1), ape(p.ratio, p.width()), norm(1, p.dim), cos(p.entries(), 2), sin(p.entries(), 2) {
    a.fill(rng), gate.fill(rng, 2), ape.fill(rng), norm.fill(rng), cos.fill(rng), sin.fill(rng);
  }
};

// Entries of all tokens, in passes of `step`.
template <class T>
std::vector<T> entries_of(testing::OpRunner& run, const Pool& p, PoolInput& in, int64_t step) {
  std::vector<float> ring(static_cast<size_t>(p.ring_rows() * 2 * p.width()), NAN);
  TestMatrix<T> entries(p.entries(), p.dim);
  for (int64_t first = 0; first < kTokens; first += step) {
    const int64_t n = std::min(step, kTokens - first), entry = std::min(first / p.ratio, p.entries() - 1);
    EXPECT_TRUE(ops::compress(run.context, {.a = in.a.tensor().slice_rows(first, n), .gate = in.gate.tensor().slice_rows(first, n), .ape = &in.ape.at(0, 0),
                                            .ring = ring.data(), .ring_rows = p.ring_rows(), .sequences = {n, first}, .ratio = p.ratio, .overlap = p.overlap,
                                            .norm = &in.norm.at(0, 0), .eps = 1e-6f, .cos = &in.cos.at(entry, 0), .sin = &in.sin.at(entry, 0), .rotary_dim = 4,
                                            .entries = entries.tensor().data, .entry_dtype = testing::kDTypeOf<T>, .entry_rows = p.entries(), .dim = p.dim}).ok());
  }
  EXPECT_TRUE(entries.untouched_outside());
  return entries.values();
}

// The formula of the header, from all tokens at once.
double exact_entry(const Pool& p, const PoolInput& in, int64_t entry, int64_t channel) {
  double sum = 0, total = 0;
  const auto add = [&](int64_t token, int64_t c) {
    const double e = std::exp(in.gate.value(token, c) + in.ape.value(token % p.ratio, c));
    sum += e * in.a.value(token, c), total += e;
  };
  for (int64_t i = 0; i < p.ratio; ++i) {
    if (p.overlap && entry > 0) add((entry - 1) * p.ratio + i, channel);
    add(entry * p.ratio + i, p.overlap ? p.dim + channel : channel);
  }
  return sum / total;
}

TEST(Compress, PoolsByChannelNormsAndTurns) {
  auto runners = make_runners(2);
  std::mt19937_64 rng(1);
  for (const Pool& p : {Pool{4, 17, true}, Pool{3, 16, true}, Pool{8, 21, false}, Pool{5, 40, false}, Pool{1, 16, true}}) {
    PoolInput in(p, rng);
    const std::vector<float> first = entries_of<float>(*runners[0], p, in, kTokens);
    for (size_t i = 0; i < runners.size(); ++i) {
      EXPECT_TRUE(all_same(first, entries_of<float>(*runners[i], p, in, kTokens))) << kernel_tables()[i].name;
      std::vector<bf16> narrow;
      for (const float v : first) narrow.push_back(to_bf16(v));
      EXPECT_TRUE(all_same(narrow, entries_of<bf16>(*runners[i], p, in, 7)));
    }
    for (int64_t e = 0; e < p.entries(); ++e) {
      std::vector<double> row;
      double square = 0;
      for (int64_t c = 0; c < p.dim; ++c) row.push_back(exact_entry(p, in, e, c)), square += row.back() * row.back();
      for (int64_t c = 0; c < p.dim; ++c) row[static_cast<size_t>(c)] *= in.norm.value(0, c) / std::sqrt(square / static_cast<double>(p.dim) + 1e-6);
      for (int64_t i = 0; i < 2; ++i) {
        double& x = row[static_cast<size_t>(p.dim - 4 + 2 * i)];
        double& y = row[static_cast<size_t>(p.dim - 3 + 2 * i)];
        const std::complex<double> z = std::complex<double>(x, y) * std::complex<double>(in.cos.value(e, i), in.sin.value(e, i));
        x = z.real(), y = z.imag();
      }
      for (int64_t c = 0; c < p.dim; ++c) ASSERT_NEAR(first[static_cast<size_t>(e * p.dim + c)], row[static_cast<size_t>(c)], 2e-5) << "entry " << e;
    }
  }
}

TEST(Compress, PassesOfAnySizeGiveTheSameBits) {
  testing::OpRunner run(kernel_tables().back().table, 2);
  std::mt19937_64 rng(2);
  for (const Pool& p : {Pool{4, 16, true}, Pool{8, 16, false}}) {
    PoolInput in(p, rng);
    const std::vector<float> whole = entries_of<float>(run, p, in, kTokens);
    for (int64_t step = 1; step < 20; ++step) EXPECT_TRUE(all_same(whole, entries_of<float>(run, p, in, step))) << "passes of " << step;
  }
}

TEST(Compress, RefusesRingsThatForgetTooMuch) {
  testing::OpRunner run(kernel_tables()[0].table);
  TestMatrix<float> a(2, 16), entries(4, 8);
  const auto code = [&](int64_t ring_rows, int64_t first) {
    return ops::compress(run.context, {.a = a.tensor(), .gate = a.tensor(), .ring_rows = ring_rows, .sequences = {2, first}, .ratio = 4, .overlap = true,
                                       .entries = entries.tensor().data, .entry_rows = 4, .dim = 8}).code();
  };
  EXPECT_EQ(code(6, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(7, 18), StatusCode::kInvalidArgument);  // entry 4 has no room
}

TEST(IndexSelect, KeepsTheBestVisibleEntriesAscendingTiesToTheLower) {
  auto one = make_runners(1), three = make_runners(3);
  std::mt19937_64 rng(3);
  constexpr int64_t kHeads = 7, kDim = 18, kEntries = 150, kRatio = 3, kFirst = 2, kRows = 440;
  for (const int64_t top_k : {1, 5, 64, 149}) {
    TestMatrix<float> q(kRows, kHeads * kDim, 1, 1), weights(kRows, kHeads, 2, 1), keys(kEntries, kDim);
    q.fill(rng), weights.fill(rng), keys.fill(rng);
    // Equal keys have equal scores; so have all keys of a query whose weights are 0.
    for (int64_t c = 0; c < kDim; ++c) keys.at(20, c) = keys.at(90, c) = keys.at(5, c);
    for (int64_t h = 0; h < kHeads; ++h) weights.at(400, h) = 0;
    std::vector<int32_t> first_ids;
    for (size_t i = 0; i < one.size(); ++i) {
      std::vector<int32_t> ids(kRows * static_cast<size_t>(top_k), -1), counts(kRows, -1), ids3 = ids, counts3 = counts;
      ops::IndexSelectArgs args{.q = q.tensor(), .weights = weights.tensor(), .scale = 0.3f, .keys = keys.tensor().data, .heads = kHeads, .dim = kDim,
                                .sequences = {kRows, kFirst}, .ratio = kRatio, .top_k = top_k, .ids = ids.data(), .counts = counts.data()};
      ASSERT_TRUE(ops::index_select(one[i]->context, args).ok());
      args.ids = ids3.data(), args.counts = counts3.data();
      ASSERT_TRUE(ops::index_select(three[i]->context, args).ok());
      EXPECT_EQ(ids, ids3);
      if (i == 0) first_ids = ids;
      EXPECT_EQ(first_ids, ids) << kernel_tables()[i].name;
      // Two tokens for three threads: they share the entries, as long as there is room for all scores of one.
      for (const int64_t room : {0, 146, 147}) {
        std::vector<float> scores(static_cast<size_t>(room));
        std::vector<int32_t> ids2(2 * static_cast<size_t>(top_k), -1), counts2(2, -1);
        args.q = q.tensor().slice_rows(438, 2), args.weights = weights.tensor().slice_rows(438, 2), args.sequences = {2, kFirst + 438};
        args.ids = ids2.data(), args.counts = counts2.data(), args.scores = room > 0 ? scores.data() : nullptr, args.num_scores = room;
        ASSERT_TRUE(ops::index_select(three[i]->context, args).ok());
        EXPECT_EQ(ids2, std::vector<int32_t>(ids.end() - 2 * top_k, ids.end())) << room;
        EXPECT_EQ(counts2, std::vector<int32_t>(counts.end() - 2, counts.end()));
      }
      for (int64_t t = 0; t < kRows; ++t) {
        const int64_t visible = (kFirst + t + 1) / kRatio;
        ASSERT_EQ(counts[static_cast<size_t>(t)], std::min(visible, top_k));
        std::vector<int32_t> order(static_cast<size_t>(visible));
        std::iota(order.begin(), order.end(), 0);
        std::vector<double> score;
        for (int64_t e = 0; e < visible; ++e) {
          double s = 0;
          for (int64_t h = 0; h < kHeads; ++h) {
            double dot = 0;
            for (int64_t c = 0; c < kDim; ++c) dot += q.value(t, h * kDim + c) * keys.value(e, c);
            s += weights.value(t, h) * 0.3 * std::max(dot, 0.0);
          }
          score.push_back(s);
        }
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)]; });
        if (visible > top_k) {
          const double cut = score[static_cast<size_t>(order[static_cast<size_t>(top_k) - 1])] - score[static_cast<size_t>(order[static_cast<size_t>(top_k)])];
          if (cut != 0 && cut < 1e-5) continue;  // fp32 may see it the other way
          order.resize(static_cast<size_t>(top_k));
        }
        std::sort(order.begin(), order.end());
        const auto begin = ids.begin() + t * top_k;
        ASSERT_TRUE(std::equal(order.begin(), order.end(), begin)) << "token " << t << " top " << top_k;
      }
    }
  }
}

TEST(CompressedAttention, IsSoftmaxOverWindowAndEntriesWithASink) {
  auto one = make_runners(1), three = make_runners(3);
  std::mt19937_64 rng(4);
  constexpr int64_t kHeads = 8, kDim = 37, kRatio = 4, kTopK = 9;
  for (const int64_t window : {1, 5, 70}) {
    for (const int kind : {0, 1, 2}) {  // window only, all entries, chosen entries
      TestMatrix<float> q(kTokens, kHeads * kDim), keys(kTokens, kDim), entries(kTokens / kRatio, kDim), sinks(1, kHeads);
      q.fill(rng), keys.fill(rng), entries.fill(rng), sinks.fill(rng, 2);
      std::vector<int32_t> ids, counts;
      for (int64_t t = 0; t < kTokens; ++t) {
        const int64_t visible = (t + 1) / kRatio;
        counts.push_back(static_cast<int32_t>(std::min(visible, kTopK - 2)));
        for (int64_t i = 0; i < kTopK; ++i) ids.push_back(static_cast<int32_t>(std::max<int64_t>(0, visible - counts.back()) + i));
      }
      std::vector<float> first;
      const auto run = [&](testing::OpRunner& r, int64_t step) {
        std::vector<float> ring(static_cast<size_t>(std::max<int64_t>(1, window - 1) * kDim), NAN);
        TestMatrix<float> out(kTokens, kHeads * kDim, 1, 2);
        for (int64_t t = 0; t < kTokens; t += step) {
          const int64_t n = std::min(step, kTokens - t);
          EXPECT_TRUE(ops::compressed_attention(
                          r.context, {.q = q.tensor().slice_rows(t, n), .new_keys = keys.tensor().slice_rows(t, n), .ring = ring.data(),
                                      .ring_rows = std::max<int64_t>(1, window - 1), .entries = kind > 0 ? entries.tensor().data : nullptr,
                                      .ids = kind == 2 ? ids.data() + t * kTopK : nullptr, .counts = kind == 2 ? counts.data() + t : nullptr, .max_ids = kTopK,
                                      .ratio = kRatio, .sinks = &sinks.at(0, 0), .scale = 0.2f, .window = window, .heads = kHeads, .dim = kDim,
                                      .sequences = {n, t}, .out = out.tensor().slice_rows(t, n)}).ok());
        }
        EXPECT_TRUE(out.untouched_outside());
        return out.values();
      };
      for (size_t i = 0; i < one.size(); ++i) {
        const std::vector<float> whole = run(*one[i], kTokens);
        if (i == 0) first = whole;
        EXPECT_TRUE(all_same(first, whole)) << kernel_tables()[i].name;
        EXPECT_TRUE(all_same(first, run(*three[i], kTokens))) << "threads";
        for (const int64_t step : {1, 3, 7}) EXPECT_TRUE(all_same(first, run(*one[i], step))) << "passes of " << step;
      }
      for (int64_t t = 0; t < kTokens; ++t) {
        std::vector<const float*> list;
        for (int64_t p = std::max<int64_t>(0, t - window + 1); p <= t; ++p) list.push_back(&keys.at(p, 0));
        for (int64_t e = 0; kind == 1 && e < (t + 1) / kRatio; ++e) list.push_back(&entries.at(e, 0));
        for (int64_t e = 0; kind == 2 && e < counts[static_cast<size_t>(t)]; ++e) list.push_back(&entries.at(ids[static_cast<size_t>(t * kTopK + e)], 0));
        for (int64_t h = 0; h < kHeads; ++h) {
          double total = std::exp(sinks.value(0, h));
          std::vector<double> o(kDim, 0.0);
          for (const float* k : list) {
            double dot = 0;
            for (int64_t c = 0; c < kDim; ++c) dot += q.value(t, h * kDim + c) * double{k[c]};
            const double e = std::exp(0.2 * dot);
            total += e;
            for (int64_t c = 0; c < kDim; ++c) o[static_cast<size_t>(c)] += e * double{k[c]};
          }
          for (int64_t c = 0; c < kDim; ++c) {
            ASSERT_NEAR(first[static_cast<size_t>((t * kHeads + h) * kDim + c)], o[static_cast<size_t>(c)] / total, 5e-6) << "token " << t << " head " << h;
          }
        }
      }
    }
  }
}

TEST(CompressedAttention, RefusesARingShorterThanTheWindow) {
  testing::OpRunner run(kernel_tables()[0].table);
  TestMatrix<float> q(1, 8), keys(1, 8), out(1, 8);
  const auto code = [&](int64_t window, int64_t rows) {
    return ops::compressed_attention(run.context, {.q = q.tensor(), .new_keys = keys.tensor(), .ring_rows = rows, .window = window, .heads = 1, .dim = 8,
                                                   .sequences = {1, 0}, .out = out.tensor()}).code();
  };
  EXPECT_EQ(code(5, 3), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, 3), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pointsman
