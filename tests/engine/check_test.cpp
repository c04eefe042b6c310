// Tests that the engine refuses invalid calls in every build: it throws std::logic_error with the operator's
// name.
#include <gtest/gtest.h>

#include "engine/operators/operators.h"
#include "engine/refusal.h"
#include "engine/runtime/rank.h"
#include "engine/runtime/weight_gradient_queue.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::engine {
namespace {

using test::refusal;

class EngineChecks : public ::testing::Test {
 protected:
  EngineChecks() { tape_.begin({.weight_gradients = &queue_}); }

  Rank rank_{turbo::make_cpu_device(1)};  // measures only, so no kernel runs
  WeightGradientQueue queue_;
  Tape tape_{rank_.context(), rank_.stash()};
};

TEST_F(EngineChecks, InvalidCallsAreRefused) {
  {
    const Value x = tape_.input(DType::kF32, {6, 10}, true);
    EXPECT_EQ(refusal([&] { split(x, 10); }), "split: check failed: at > 0 && at < cols");
    EXPECT_EQ(refusal([&] { split(x, 0); }), "split: check failed: at > 0 && at < cols");
    const Tensor wrong_type(nullptr, DType::kBF16, {6, 10});
    EXPECT_EQ(refusal([&] { tape_.set_gradient(x, wrong_type); }).substr(0, 33),
              "Tape::set_gradient: check failed:");
    KvCacheLayer cache;
    EXPECT_EQ(refusal([&] { attention(x, {}, {.cache = &cache}); }).substr(0, 24),
              "attention: check failed:");
    tape_.backward();
    EXPECT_EQ(refusal([&] { tape_.backward(); }).substr(0, 29), "Tape::backward: check failed:");
  }
  tape_.abandon();
}

// launch() checks shapes before any kernel runs.
TEST_F(EngineChecks, WrongShapesReachNoKernel) {
  {
    const Value odd = tape_.input(DType::kF32, {6, 9}, true);
    EXPECT_EQ(refusal([&] { swiglu(odd); }).substr(0, 28), "SwigluForward: check failed:");
  }
  tape_.abandon();
}

}  // namespace
}  // namespace primus::engine
