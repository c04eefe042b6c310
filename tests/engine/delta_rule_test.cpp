// Tests that the delta rule over sequences split between context ranks, and over a cache, equals the delta
// rule over whole sequences.
#include "engine/operators/delta_rule.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "engine/context_ranks.h"
#include "engine/device_values.h"
#include "engine/parallel/data_parallel.h"
#include "engine/runtime/weight_gradient_queue.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::engine {
namespace {

using test::numbers;
using test::rows_of;

constexpr std::int64_t kSequences = 2, kSequence = 144;

turbo::DeltaRuleShape shape_of(bool channel_gates) {
  return {.batch = kSequences,
          .sequence = kSequence,
          .key_heads = 4,
          .value_heads = 8,
          .key_dim = 8,
          .value_dim = 12,
          .channel_gates = channel_gates,
          .normalise = true,
          .scale = 0.4F};
}

// The inputs of all tokens.
struct Inputs {
  std::vector<float> qkv, g, beta, d_gated;
  explicit Inputs(const turbo::DeltaRuleShape& s)
      : qkv(numbers(s.rows() * s.width(), 1)),
        g(numbers(s.rows() * s.gates(), 2)),
        beta(numbers(s.rows() * s.value_heads, 3)),
        d_gated(numbers(s.rows() * s.out_width() / 2, 4)) {
    for (float& value : g) value = -0.1F * std::abs(value);
    for (float& value : beta) value = 1 / (1 + std::exp(-value));
  }
};

struct Result {
  std::vector<float> out, gated, d_qkv, d_g, d_beta;  // for this rank's tokens
  std::int64_t forwards = 0;
};

struct Case {
  bool channel_gates, documents, recompute;
  DType dtype;
};

// Runs forward and backward on one rank, for its tokens.
Result run_rank(Mesh mesh, const Case& c, const std::vector<std::int64_t>& tokens) {
  turbo::DeltaRuleShape s = shape_of(c.channel_gates);
  const Inputs all(s);
  const auto held = static_cast<std::int64_t>(tokens.size());
  s.sequence = held / kSequences;
  std::vector<std::int32_t> first_keys;
  for (const std::int64_t t : tokens) first_keys.push_back(t % kSequence < 70 ? 0 : 70);
  const bool single = mesh.size() == 1;
  Rank rank(turbo::make_cpu_device(1), std::move(mesh));
  Result result;
  const auto run = [&] {
    ParameterStore store;
    store.allocate({.compute = c.dtype}, rank.persistent());
    WeightGradientQueue queue;
    DataParallel parallel(rank, store, {});
    Tape tape(rank.context(), rank.stash());
    RecomputePolicy policy;
    if (c.recompute) policy.classes = RecomputePolicy::bit(OperatorClass::kAttention);
    tape.begin({.recompute = policy, .weight_gradients = &queue, .parallel = &parallel});
    parallel.begin_step(1);
    std::optional<ContextParallel> context;
    if (!single) context.emplace(rank, ContextParallel::Exchange::kRing);
    {
      const auto input = [&](DType dtype, const std::vector<float>& of_all, std::int64_t columns) {
        return test::tape_input(tape, rank, dtype, rows_of(of_all, columns, tokens), held, columns);
      };
      const Value qkv = input(c.dtype, all.qkv, s.width()), g = input(DType::kF32, all.g, s.gates());
      const Value beta = input(DType::kF32, all.beta, s.value_heads);
      const Value d_gated = input(c.dtype, all.d_gated, s.out_width() / 2);
      DeltaRuleOptions options;
      if (context) options.context = &*context;
      if (c.documents) {
        options.first_key = tape.input(DType::kI32, {held}, false);
        const Tensor to = options.first_key.tensor();
        if (!rank.measuring()) rank.compute().copy_to_device(to.data, first_keys.data(), to.bytes());
      }
      // swiglu reads the output in the backward pass, so the delta rule is recomputed there.
      tape.enter_block(0);
      Value out = delta_rule(qkv, g, beta, s, options);
      const Value gated = swiglu(out);
      tape.leave_block();
      result.out = test::read_wide(rank, out.tensor());
      result.gated = test::read_wide(rank, gated.tensor());
      out = {};
      tape.set_gradient(gated, d_gated.tensor());
      tape.backward();
      result.d_qkv = test::read_wide(rank, tape.gradient(qkv));
      result.d_g = test::read_wide(rank, tape.gradient(g));
      result.d_beta = test::read_wide(rank, tape.gradient(beta));
    }
    tape.clear();
  };
  run();
  rank.reserve(rank.high_water());
  rank.context().meter.reset();
  run();
  result.forwards = rank.context().meter[turbo::KernelId::kDeltaRuleForward].calls;
  return result;
}

class ContextDeltaRule : public testing::TestWithParam<Case> {};

TEST_P(ContextDeltaRule, EqualsDeltaRuleOverWholeSequences) {
  const Case& c = GetParam();
  const turbo::DeltaRuleShape s = shape_of(c.channel_gates);
  const auto tokens_of = [](int ranks, int rank) {
    return test::tokens_of(kSequences, kSequence, ranks, rank);
  };
  const Result whole = run_rank({}, c, tokens_of(1, 0));
  for (const int ranks : {2, 4}) {
    const auto results = test::on_context_ranks<Result>(
        ranks, [&](Mesh mesh, int rank) { return run_rank(std::move(mesh), c, tokens_of(ranks, rank)); });
    for (int r = 0; r < ranks; ++r) {
      const Result& part = results[static_cast<std::size_t>(r)];
      const auto tokens = tokens_of(ranks, r);
      // Bits are equal, because the same kernels run over the same rows.
      EXPECT_EQ(part.out, rows_of(whole.out, s.out_width(), tokens));
      EXPECT_EQ(part.d_qkv, rows_of(whole.d_qkv, s.width(), tokens));
      EXPECT_EQ(part.d_g, rows_of(whole.d_g, s.gates(), tokens));
      EXPECT_EQ(part.d_beta, rows_of(whole.d_beta, s.value_heads, tokens));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ContextDeltaRule,
                         testing::Values(Case{false, false, false, DType::kF32},
                                         Case{false, true, true, DType::kBF16},
                                         Case{true, true, false, DType::kF32},
                                         Case{true, false, true, DType::kBF16}));

// A recomputed delta rule gives the bits of a stored one.
TEST(DeltaRuleOperator, RecomputedResultsEqualKeptResults) {
  for (const bool by_channel : {false, true}) {
    Case c{by_channel, true, false, DType::kBF16};
    const auto tokens = test::tokens_of(kSequences, kSequence, 1, 0);
    const Result kept = run_rank({}, c, tokens);
    c.recompute = true;
    const Result replayed = run_rank({}, c, tokens);
    EXPECT_EQ(kept.forwards, 1);
    EXPECT_EQ(replayed.forwards, 2);
    EXPECT_EQ(replayed.gated, kept.gated);
    EXPECT_EQ(replayed.d_qkv, kept.d_qkv);
    EXPECT_EQ(replayed.d_g, kept.d_g);
  }
}

TEST(DeltaRuleOperator, ContextRanksDivideKeyHeads) {
  EXPECT_TRUE(delta_rule_divides(16, 8));
  EXPECT_FALSE(delta_rule_divides(16, 3));
}

// Two texts that are decoded from a cache, first prompts and then single tokens, give the outputs of whole
// sequences.
TEST(DeltaRuleOperator, GenerationWithACacheEqualsTraining) {
  turbo::DeltaRuleShape s = shape_of(true);
  const Inputs all(s);
  const auto tokens = test::tokens_of(kSequences, kSequence, 1, 0);
  const Result whole = run_rank({}, {true, false, false, DType::kF32}, tokens);
  Rank rank(turbo::make_cpu_device(2));
  KvCacheLayer layer;
  turbo::PagedSequences sequences{.page_size = 64};
  const auto run = [&] {
    const auto make = [&](DType dtype, Shape shape) { return rank.persistent(dtype, shape); };
    layer.state = make(DType::kF32, {kSequences, s.value_heads, s.key_dim, s.value_dim});
    layer.recent = make(DType::kF32, {kSequences, kDeltaRuleRing, s.value_heads * s.recent_width()});
    layer.committed = make(DType::kI32, {kSequences, s.value_heads});
    sequences.query_starts = make(DType::kI32, {kSequences + 1});
    sequences.key_lengths = make(DType::kI32, {kSequences});
    sequences.block_table = make(DType::kI32, {kSequences, kSequence / 64 + 1});
    std::int32_t length = 0;
    for (const std::int32_t count : {40, 1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 30}) {
      Tape tape(rank.context(), rank.stash());
      tape.begin({.train = false});
      length += count;
      std::vector<std::int64_t> rows;
      for (std::int64_t b = 0; b < kSequences; ++b) {
        for (std::int64_t i = length - count; i < length; ++i) rows.push_back(b * kSequence + i);
      }
      const std::vector<std::int32_t> starts{0, count, 2 * count}, lengths(kSequences, length);
      if (!rank.measuring()) {
        test::write(rank, sequences.query_starts, starts);
        test::write(rank, sequences.key_lengths, lengths);
      }
      s.batch = 1, s.sequence = static_cast<std::int64_t>(rows.size());
      const auto input = [&](const std::vector<float>& of_all, std::int64_t columns) {
        return test::tape_input(tape, rank, DType::kF32, rows_of(of_all, columns, rows), s.sequence, columns);
      };
      {
        const Value qkv = input(all.qkv, s.width()), g = input(all.g, s.gates());
        const Value beta = input(all.beta, s.value_heads);
        const Value out = delta_rule(qkv, g, beta, s, {.cache = {&layer, &sequences}});
        const std::vector<float> read = test::read_wide(rank, out.tensor());
        if (!rank.measuring()) {
          EXPECT_LE(test::distance(read, rows_of(whole.out, s.out_width(), rows)), 1e-5) << length;
        }
      }
      tape.clear();
    }
  };
  run();
  rank.reserve(rank.high_water());
  run();
}

}  // namespace
}  // namespace primus::engine
