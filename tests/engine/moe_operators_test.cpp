// Tests expert operators on a tape: several users of a value, and gradients that are not needed.
#include "engine/operators/moe_operators.h"

#include <gtest/gtest.h>

#include <vector>

#include "device/guard_device.h"
#include "engine/device_values.h"
#include "engine/runtime/rank.h"
#include "engine/runtime/tape.h"
#include "engine/runtime/weight_gradient_queue.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/moe_permute/moe_permute.h"

namespace primus::engine {
namespace {

constexpr std::int64_t kTokens = 3, kTopK = 2, kExperts = 2, kRows = kTokens * kTopK, kFfn = 5;

class WeightedSwiglu {
 public:
  struct Gradients {
    std::vector<float> gate_up, weights;
  };

  WeightedSwiglu() : rank_(std::make_unique<test::GuardDevice>(2, turbo::cpu_kernel_table())) {
    rank_.reserve({.persistent = 1 << 20, .stash = 1 << 20, .scratch = 1 << 20});
  }

  // Returns the gradients of `calls` weighted swiglus of the same rows, followed by a swiglu without weights
  // if `plain`. All outputs get the same gradient.
  Gradients of(int calls, bool plain, bool rows_differ = true, bool weights_differ = true) {
    WeightGradientQueue queue;
    Tape tape(rank_.context(), rank_.stash());
    tape.begin({.weight_gradients = &queue});
    Gradients result;
    {
      const Value gate_up = tape.input(DType::kF32, {kRows, 2 * kFfn}, rows_differ);
      fill(gate_up.tensor(), test::numbers(kRows * 2 * kFfn, 1));
      Routing routing{
          .weights = tape.input(DType::kF32, {kTokens, kTopK}, weights_differ),
          .experts = tape.input(DType::kI32, {kTokens, kTopK}, false),
          .plan = tape.input(DType::kI32, turbo::RoutingPlan::shape(kExperts, kTokens, kTopK), false),
          .expert_count = kExperts,
          .rows = kRows};
      fill(routing.weights.tensor(), test::numbers(kRows, 2));
      fill(routing.experts.tensor(), std::vector<std::int32_t>{1, 0, 0, 1, 1, 0});
      turbo::launch(rank_.context(), turbo::PlanRouting{.experts = routing.experts.tensor(),
                                                        .weights = {},
                                                        .plan = routing.plan.tensor(),
                                                        .expert_count = kExperts,
                                                        .capacity = 0});
      const Value d_out = tape.input(DType::kF32, {kRows, kFfn}, false);
      fill(d_out.tensor(), test::numbers(kRows * kFfn, 3));
      for (int call = 0; call < calls; ++call)
        tape.set_gradient(weighted_swiglu(gate_up, routing), d_out.tensor());
      if (plain && rows_differ) tape.set_gradient(swiglu(gate_up), d_out.tensor());
      tape.backward();
      if (rows_differ) result.gate_up = read(tape.gradient(gate_up));
      if (weights_differ && calls > 0) result.weights = read(tape.gradient(routing.weights));
    }
    tape.clear();
    return result;
  }

 private:
  template <class T>
  void fill(const Tensor& tensor, const std::vector<T>& values) {
    test::write(rank_, tensor, values);
  }
  std::vector<float> read(const Tensor& tensor) { return test::read(rank_, tensor); }

  Rank rank_;
};

// The gradients of two and four users are exact multiples of the gradient of one user.
TEST(MoeOperators, GradientsOfSeveralUsersAreSummed) {
  WeightedSwiglu swiglu;
  const auto once = swiglu.of(1, false);
  for (const int calls : {2, 4}) {
    const auto several = swiglu.of(calls, false);
    for (std::size_t i = 0; i < once.gate_up.size(); ++i)
      EXPECT_EQ(several.gate_up[i], static_cast<float>(calls) * once.gate_up[i]) << i;
    for (std::size_t i = 0; i < once.weights.size(); ++i)
      EXPECT_EQ(several.weights[i], static_cast<float>(calls) * once.weights[i]) << i;
  }
}

// The gradient of the plain swiglu exists before the weighted one adds to it.
TEST(MoeOperators, TheGradientOfAnotherUserIsKept) {
  WeightedSwiglu swiglu;
  const auto weighted = swiglu.of(1, false), plain = swiglu.of(0, true), both = swiglu.of(1, true);
  EXPECT_EQ(both.weights, weighted.weights);
  for (std::size_t i = 0; i < both.gate_up.size(); ++i)
    EXPECT_EQ(both.gate_up[i], plain.gate_up[i] + weighted.gate_up[i]) << i;
}

// The gradient of the rows does not depend on whether the weights need a gradient, and vice versa.
TEST(MoeOperators, GradientsDoNotDependOnEachOther) {
  WeightedSwiglu swiglu;
  const auto both = swiglu.of(2, true);
  EXPECT_EQ(swiglu.of(2, true, true, false).gate_up, both.gate_up);
  EXPECT_EQ(swiglu.of(2, true, false, true).weights, both.weights);
  EXPECT_NE(both.weights, std::vector<float>(both.weights.size()));
}

// The balance loss divides summed loads by the number of microbatches and ranks (load_share). Its gradient
// scales exactly with load_share.
TEST(MoeOperators, TheBalanceGradientUsesTheMeanLoad) {
  Rank rank(std::make_unique<test::GuardDevice>(2, turbo::cpu_kernel_table()));
  rank.reserve({.persistent = 1 << 20, .stash = 1 << 20, .scratch = 1 << 20});
  const auto gradient = [&](float load_share) {
    WeightGradientQueue queue;
    Tape tape(rank.context(), rank.stash());
    tape.begin({.weight_gradients = &queue});
    std::vector<float> result;
    {
      const Value logits = tape.input(DType::kF32, {kTokens, kExperts}, true);
      test::write(rank, logits.tensor(), test::numbers(kTokens * kExperts, 4));
      const Value load = tape.input(DType::kI32, {1, kExperts}, false);
      test::write(rank, load.tensor(), std::vector<std::int32_t>{9, 3});
      RoutingRule rule{.router = {.top_k = 1}, .balance_scale = 0.5F};
      rule.load_share = load_share;
      const Routing routing = route(logits, rule, {}, {}, {}, load);
      const Value d_weights = tape.input(DType::kF32, {kTokens, 1}, false);
      test::write(rank, d_weights.tensor(), std::vector<float>(kTokens));
      tape.set_gradient(routing.weights, d_weights.tensor());
      tape.backward();
      result = test::read(rank, tape.gradient(logits));
    }
    tape.clear();
    return result;
  };
  const std::vector<float> whole = gradient(1), quarter = gradient(0.25F);
  EXPECT_NE(whole, std::vector<float>(whole.size()));
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(quarter[i], 0.25F * whole[i]) << i;
}

}  // namespace
}  // namespace primus::engine
