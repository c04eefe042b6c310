// Tests LoRA adapters with dropout on a tape: outputs and gradients are compared with explicit masks in
// double.
#include "engine/operators/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/random/random.h"
#include "device/guard_device.h"
#include "engine/device_values.h"
#include "engine/operators/operators.h"
#include "engine/runtime/rank.h"
#include "engine/runtime/weight_gradient_queue.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/step_scalars.h"

namespace primus::engine {
namespace {

constexpr std::int64_t kTokens = 5, kIn = 14, kOut = 9, kDim = 3;
constexpr std::uint64_t kSeed = 21;
constexpr float kRate = 0.3F, kScale = 1.5F;
using Numbers = std::vector<double>;

// Returns a [m, k] · b [k, n].
Numbers times(const Numbers& a, const Numbers& b, std::int64_t m, std::int64_t k, std::int64_t n) {
  Numbers c;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l)
        sum += a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(l * n + j)];
      c.push_back(sum);
    }
  }
  return c;
}

Numbers transposed(const Numbers& a, std::int64_t rows, std::int64_t cols) {
  Numbers t;
  for (std::int64_t j = 0; j < cols; ++j) {
    for (std::int64_t i = 0; i < rows; ++i) t.push_back(a[static_cast<std::size_t>(i * cols + j)]);
  }
  return t;
}

Numbers masked(Numbers values, const Numbers& mask) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= mask[i];
  return values;
}

Numbers plus(Numbers values, const Numbers& others, double factor) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += factor * others[i];
  return values;
}

Numbers wide(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// A linear layer with an adapter.
class Adapted {
 public:
  struct Result {
    std::vector<float> y, d_x, d_a, d_b;
    bool operator==(const Result&) const = default;
  };

  Adapted() : rank_(std::make_unique<test::GuardDevice>(2, turbo::cpu_kernel_table())) {
    rank_.reserve({.persistent = 1 << 20, .stash = 1 << 20, .scratch = 1 << 20});
    store_.begin_group("layer");
    w_ = &store_.add("w", {kOut, kIn}, Initializer::normal(1));
    a_ = &store_.add("w.lora_A", {kDim, kIn}, Initializer::normal(1));
    b_ = &store_.add("w.lora_B", {kOut, kDim}, Initializer::normal(1));
    w_->trainable = false;
    for (Parameter* p : {w_, a_, b_}) p->uses = {0};
    store_.allocate({}, rank_.persistent());
    fill(w_->value, w);
    fill(a_->value, a);
    fill(b_->value, b);
    scalars_ = rank_.persistent(DType::kF64, {turbo::kStepScalars});
    fill(scalars_, std::vector<double>{4, 0, 0, 0, 0});
  }

  // Runs forward and backward. `after` applies dropout to the adapter's output instead of its input. Without
  // `scope`, no dropout is active.
  Result run(float rate, bool after, bool scope,
             WeightGradientQueue::Policy policy = WeightGradientQueue::Policy::kInline,
             RecomputePolicy recompute = {}) {
    w_->low_rank = {.down = a_, .up = b_, .scale = kScale, .dropout = rate, .drops_after = after};
    for (Parameter* p : {a_, b_}) p->turn = 0, p->has_gradient = false;
    WeightGradientQueue queue(policy);
    Tape tape(rank_.context(), rank_.stash());
    tape.begin({.recompute = recompute, .weight_gradients = &queue});
    Result result;
    {
      const Value in = tape.input(DType::kF32, {kTokens, kIn}, true);
      fill(in.tensor(), x);
      const Value tokens = tape.input(DType::kI32, {kTokens}, false);
      fill(tokens.tensor(), kNumbers);
      const Value d_out = tape.input(DType::kF32, {kTokens, kOut}, false);
      fill(d_out.tensor(), d_y);
      Value out;
      if (scope) {
        const DropoutScope dropout(tape,
                                   {.seed = kSeed, .scalars = scalars_, .of_layer = tokens, .own = tokens});
        out = linear(in, *w_);
      } else {
        out = linear(in, *w_);
      }
      result.y = read(out.tensor());
      tape.set_gradient(out, d_out.tensor());
      out = {};
      tape.backward();
      queue.run(tape);
      result.d_x = read(tape.gradient(in));
      result.d_a = read(a_->gradient);
      result.d_b = read(b_->gradient);
    }
    tape.clear();
    return result;
  }

  // Returns the mask of all tokens for a matrix of `cols` columns: 0, or 1 / (1 - rate).
  static Numbers mask(std::int64_t cols) {
    Numbers values;
    for (const std::int32_t token : kNumbers) {
      const RandomStream draws(kSeed ^ random_stream_id("w.lora_A"), RandomPurpose::kDropout, 4,
                               static_cast<std::uint32_t>(token));
      for (std::int64_t c = 0; c < cols; ++c)
        values.push_back(
            draws.uniform(static_cast<std::uint64_t>(c)) >= kRate ? 1 / (1 - static_cast<double>(kRate)) : 0);
    }
    return values;
  }

  const std::vector<float> w = test::numbers(kOut * kIn, 1), a = test::numbers(kDim * kIn, 2),
                           b = test::numbers(kOut * kDim, 3), x = test::numbers(kTokens * kIn, 4),
                           d_y = test::numbers(kTokens * kOut, 5);

 private:
  inline static const std::vector<std::int32_t> kNumbers{3, 4, 100, 101, 7};

  template <class T>
  void fill(const Tensor& tensor, const std::vector<T>& values) {
    test::write(rank_, tensor, values);
  }
  std::vector<float> read(const Tensor& tensor) { return test::read(rank_, tensor); }

  Rank rank_;
  ParameterStore store_;
  Parameter *w_, *a_, *b_;
  Tensor scalars_;
};

// The tolerance covers sums of at most 14 products of three fp32 numbers.
void expect_near(const std::vector<float>& values, const Numbers& expected, const char* what) {
  ASSERT_EQ(values.size(), expected.size());
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(values[i]) - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  EXPECT_LE(error, 3e-6 * largest) << what;
}

// Dropout of the adapter's input: y = x Wᵀ + s (m∘x) Aᵀ Bᵀ, and its gradients.
TEST(LowRankDropout, OnTheInputOfAEqualsTheMask) {
  Adapted layer;
  const Adapted::Result got = layer.run(kRate, false, true);
  const Numbers w = wide(layer.w), a = wide(layer.a), b = wide(layer.b), x = wide(layer.x),
                d = wide(layer.d_y);
  const Numbers m = Adapted::mask(kIn), read = masked(x, m);
  const Numbers low = times(read, transposed(a, kDim, kIn), kTokens, kIn, kDim);
  expect_near(got.y,
              plus(times(x, transposed(w, kOut, kIn), kTokens, kIn, kOut),
                   times(low, transposed(b, kOut, kDim), kTokens, kDim, kOut), kScale),
              "y");
  const Numbers d_low = times(d, b, kTokens, kOut, kDim);
  expect_near(got.d_x,
              plus(times(d, w, kTokens, kOut, kIn), masked(times(d_low, a, kTokens, kDim, kIn), m), kScale),
              "dx");
  const Numbers none(static_cast<std::size_t>(kDim * kIn)), nothing(static_cast<std::size_t>(kOut * kDim));
  expect_near(got.d_a, plus(none, times(transposed(d_low, kTokens, kDim), read, kDim, kTokens, kIn), kScale),
              "dA");
  expect_near(got.d_b, plus(nothing, times(transposed(d, kTokens, kOut), low, kOut, kTokens, kDim), kScale),
              "dB");
}

// Dropout of the adapter's output: y = x Wᵀ + s m∘(x Aᵀ Bᵀ), and its gradients.
TEST(LowRankDropout, OnTheOutputOfBEqualsTheMask) {
  Adapted layer;
  const Adapted::Result got = layer.run(kRate, true, true);
  const Numbers w = wide(layer.w), a = wide(layer.a), b = wide(layer.b), x = wide(layer.x);
  const Numbers m = Adapted::mask(kOut), d = wide(layer.d_y), d_given = masked(d, m);
  const Numbers low = times(x, transposed(a, kDim, kIn), kTokens, kIn, kDim);
  expect_near(got.y,
              plus(times(x, transposed(w, kOut, kIn), kTokens, kIn, kOut),
                   masked(times(low, transposed(b, kOut, kDim), kTokens, kDim, kOut), m), kScale),
              "y");
  const Numbers d_low = times(d_given, b, kTokens, kOut, kDim);
  expect_near(got.d_x, plus(times(d, w, kTokens, kOut, kIn), times(d_low, a, kTokens, kDim, kIn), kScale),
              "dx");
  const Numbers none(static_cast<std::size_t>(kDim * kIn)), nothing(static_cast<std::size_t>(kOut * kDim));
  expect_near(got.d_a, plus(none, times(transposed(d_low, kTokens, kDim), x, kDim, kTokens, kIn), kScale),
              "dA");
  expect_near(got.d_b,
              plus(nothing, times(transposed(d_given, kTokens, kOut), low, kOut, kTokens, kDim), kScale),
              "dB");
}

// Deferred weight gradients and recomputation give the same bits.
TEST(LowRankDropout, DoesNotDependOnWhenGradientsRun) {
  using Policy = WeightGradientQueue::Policy;
  for (const bool after : {false, true}) {
    Adapted layer;
    const Adapted::Result got = layer.run(kRate, after, true);
    EXPECT_EQ(layer.run(kRate, after, true), got);
    EXPECT_EQ(layer.run(kRate, after, true, Policy::kDeferred), got);
    EXPECT_EQ(layer.run(kRate, after, true, Policy::kDeferred, {.classes = ~0U}), got);
  }
}

// Without a DropoutScope or with a rate of 0, adapters have no dropout.
TEST(LowRankDropout, IsOffWithoutAScope) {
  Adapted layer;
  const Adapted::Result none = layer.run(0, false, true);
  EXPECT_EQ(layer.run(kRate, false, false), none);
  EXPECT_EQ(layer.run(kRate, true, false), none);
  EXPECT_NE(layer.run(kRate, false, true), none);
}

}  // namespace
}  // namespace primus::engine
