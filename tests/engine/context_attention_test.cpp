// Tests that attention over sequences split between context ranks equals attention over whole sequences.
#include "engine/parallel/context_attention.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "engine/context_ranks.h"
#include "engine/device_values.h"
#include "engine/parallel/data_parallel.h"
#include "engine/runtime/weight_gradient_queue.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::engine {
namespace {

using test::distance;
using test::numbers;
using test::rows_of;
using Exchange = ContextParallel::Exchange;

constexpr std::int64_t kSequences = 2, kSequence = 48;

struct Case {
  const char* name;
  turbo::AttentionShape shape;  // batch and lengths are set later
  bool documents = false, sinks = false;
};

turbo::AttentionShape shape_of(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                               std::int64_t value_dim, std::int64_t window = 0, std::int64_t chunk = 0) {
  return {.batch = kSequences,
          .seq_q = kSequence,
          .seq_k = 0,
          .capacity_k = 0,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .value_dim = value_dim,
          .scale = 0.3F,
          .causal = true,
          .window = window,
          .chunk = chunk};
}

const Case kCases[] = {
    {"Plain", shape_of(2, 2, 8, 8)},
    {"GroupedHeads", shape_of(4, 2, 8, 8)},
    {"ManyHeads", shape_of(12, 12, 4, 4)},
    {"ManyHeadsDocumentsAndSinks", shape_of(24, 12, 4, 6, 9), true, true},
    {"ValuesOfAnotherSize", shape_of(2, 2, 12, 8)},
    {"Window", shape_of(2, 1, 8, 8, 7)},
    {"Chunk", shape_of(2, 2, 8, 8, 0, 20)},
    // With two ranks, whose slices have 12 tokens, a chunk begins with the last token of a slice.
    {"ChunkFromALastToken", shape_of(2, 2, 8, 8, 0, 11)},
    // This window hides the first key from the last query only. The next window hides no key.
    {"WindowOfAllButOne", shape_of(2, 2, 8, 8, kSequence - 1)},
    {"WindowOfAll", shape_of(2, 2, 8, 8, kSequence)},
    {"Documents", shape_of(2, 2, 8, 8), true},
    {"Sinks", shape_of(4, 2, 8, 8), false, true},
    {"WindowDocumentsAndSinks", shape_of(4, 2, 8, 8, 9), true, true},
};

struct Result {
  std::vector<float> out, d_qkv, d_sinks;  // for this rank's tokens
  turbo::Meter meter;
};

// Runs forward and backward on one rank, for its tokens.
Result attend(Mesh mesh, const Case& c, DType dtype, Exchange exchange,
              const std::vector<std::int64_t>& tokens) {
  const std::int64_t width =
      c.shape.heads * c.shape.head_dim + c.shape.kv_heads * (c.shape.head_dim + c.shape.value_dim);
  const std::int64_t out_width = c.shape.heads * c.shape.value_dim;
  const std::int64_t total = kSequences * kSequence, held = static_cast<std::int64_t>(tokens.size());
  std::vector<std::int32_t> first_keys;
  for (const std::int64_t t : tokens) {
    const std::int64_t position = t % kSequence;
    first_keys.push_back(static_cast<std::int32_t>(position < 13 ? 0 : position < 31 ? 13 : 31));
  }
  const bool single = mesh.size() == 1;
  Rank rank(turbo::make_cpu_device(1), std::move(mesh));
  Result result;
  const auto run = [&] {
    ParameterStore store;
    store.begin_group("block");
    Parameter& sinks = store.add("sinks", {c.shape.heads}, Initializer::normal(1));
    sinks.uses.push_back(0);
    store.allocate({.compute = dtype}, rank.persistent());
    store.initialize(rank.context(), 3);
    WeightGradientQueue queue;
    DataParallel parallel(rank, store, {});
    Tape tape(rank.context(), rank.stash());
    tape.begin({.weight_gradients = &queue, .parallel = &parallel});
    parallel.begin_step(1);
    std::optional<ContextParallel> context;
    if (!single) context.emplace(rank, exchange);
    const auto fill = [&](const std::vector<float>& values, std::int64_t columns) {
      return test::tape_input(tape, rank, dtype, values, held, columns);
    };
    {
      const Value qkv = fill(rows_of(numbers(total * width, 1), width, tokens), width);
      const Value d_out = fill(rows_of(numbers(total * out_width, 2), out_width, tokens), out_width);
      AttentionOptions options;
      if (c.documents) {
        options.first_key = tape.input(DType::kI32, {held}, false);
        const Tensor to = options.first_key.tensor();
        if (!rank.measuring()) rank.compute().copy_to_device(to.data, first_keys.data(), to.bytes());
      }
      if (c.sinks) options.sinks = &sinks;
      if (context) options.context = &*context;
      turbo::AttentionShape shape = c.shape;
      shape.seq_q = held / kSequences;
      const Value out = attention(qkv, shape, options);
      tape.set_gradient(out, d_out.tensor());
      const auto read = [&](const Tensor& tensor) { return test::read_wide(rank, tensor); };
      result.out = read(out.tensor());
      tape.backward();
      queue.run(tape);
      result.d_qkv = read(tape.gradient(qkv));
      if (c.sinks) result.d_sinks = read(sinks.gradient);
    }
    tape.clear();
  };
  run();
  rank.reserve(rank.high_water());
  run();
  result.meter = rank.context().meter;
  return result;
}

std::vector<std::int64_t> tokens_of(int ranks, int rank) {
  return test::tokens_of(kSequences, kSequence, ranks, rank);
}

// Runs all ranks as threads.
std::vector<Result> attend_together(int ranks, const Case& c, DType dtype, Exchange exchange) {
  return test::on_context_ranks<Result>(ranks, [&](Mesh mesh, int rank) {
    return attend(std::move(mesh), c, dtype, exchange, tokens_of(ranks, rank));
  });
}

// The slices of context ranks cover each position once and have equally many causal pairs.
TEST(ContextPositions, EveryTokenIsOnOneRankAndWorkIsEven) {
  for (const int ranks : {1, 2, 3, 4}) {
    std::vector<int> held(static_cast<std::size_t>(kSequence));
    std::vector<std::int64_t> work;
    for (int r = 0; r < ranks; ++r) {
      const auto positions = context_positions(kSequence, ranks, r);
      for (const std::int64_t p : positions) ++held[static_cast<std::size_t>(p)];
      work.push_back(std::accumulate(positions.begin(), positions.end(), std::int64_t{0}));
    }
    EXPECT_EQ(held, std::vector<int>(held.size(), 1));
    EXPECT_EQ(work, std::vector<std::int64_t>(work.size(), work.front()));
  }
}

class ContextAttention : public testing::TestWithParam<std::tuple<Case, Exchange, DType>> {};

TEST_P(ContextAttention, EqualsAttentionOverWholeSequences) {
  const auto& [c, exchange, dtype] = GetParam();
  const double tolerance = dtype == DType::kF32 ? 1e-5 : 1e-2;
  const Result whole = attend({}, c, dtype, exchange, tokens_of(1, 0));
  const std::int64_t width = static_cast<std::int64_t>(whole.d_qkv.size()) / (kSequences * kSequence);
  const std::int64_t out_width = static_cast<std::int64_t>(whole.out.size()) / (kSequences * kSequence);
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    if (exchange == Exchange::kAllToAll && c.shape.kv_heads % ranks != 0) continue;
    const std::vector<Result> results = attend_together(ranks, c, dtype, exchange);
    std::vector<float> d_sinks(whole.d_sinks.size());
    for (int r = 0; r < ranks; ++r) {
      SCOPED_TRACE(r);
      const auto i = static_cast<std::size_t>(r);
      const auto tokens = tokens_of(ranks, r);
      EXPECT_LE(distance(results[i].out, rows_of(whole.out, out_width, tokens)), tolerance);
      EXPECT_LE(distance(results[i].d_qkv, rows_of(whole.d_qkv, width, tokens)), tolerance);
      for (std::size_t k = 0; k < d_sinks.size(); ++k) d_sinks[k] += results[i].d_sinks[k];
    }
    if (c.sinks) {
      EXPECT_LE(distance(d_sinks, whole.d_sinks), tolerance);
    }
  }
}

// If only causality masks keys, one call covers all keys of a rank, even if they come from several slices, so
// the products are large and cuDNN accepts them. Every rank computes equally many operations.
TEST(ContextAttentionCalls, EachRankMakesOneCallPerRanksKeysAndHasEqualWork) {
  Case wide = kCases[0];
  wide.shape.window = 4 * kSequence;
  for (const Case& c : {kCases[0], wide}) {
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(ranks);
      const std::vector<Result> results = attend_together(ranks, c, DType::kF32, Exchange::kRing);
      for (const Result& result : results) {
        const auto line = [&](turbo::KernelId id) {
          return result.meter.lines[static_cast<std::size_t>(id)];
        };
        EXPECT_EQ(line(turbo::KernelId::kAttentionForward).calls, kSequences * ranks);
        EXPECT_EQ(line(turbo::KernelId::kAttentionBackward).calls, kSequences * ranks);
        // The first part of a query's output is written directly. The other parts are merged into the first
        // one.
        EXPECT_EQ(line(turbo::KernelId::kAttentionMerge).calls, kSequences * (ranks - 1));
        // The causal pairs are divided equally between the ranks.
        EXPECT_EQ(line(turbo::KernelId::kAttentionForward).flops,
                  results[0].meter.lines[static_cast<std::size_t>(turbo::KernelId::kAttentionForward)].flops);
      }
    }
  }
}

std::string name_of(const testing::TestParamInfo<ContextAttention::ParamType>& test) {
  static constexpr std::array kNames = {"Ring", "AllGather", "AllToAll"};
  const auto exchange = std::get<Exchange>(test.param);
  return std::string(std::get<Case>(test.param).name) + kNames[static_cast<std::size_t>(exchange)] +
         (std::get<DType>(test.param) == DType::kF32 ? "F32" : "BF16");
}

INSTANTIATE_TEST_SUITE_P(Kinds, ContextAttention,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::Values(Exchange::kRing, Exchange::kAllGather,
                                                          Exchange::kAllToAll),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         name_of);

}  // namespace
}  // namespace primus::engine
