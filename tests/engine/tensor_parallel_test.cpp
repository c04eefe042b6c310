// Tests products that overlap collectives, without a model (for models see tests/lm/train/mesh_test.cpp).
#include "engine/parallel/tensor_parallel.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "engine/device_values.h"
#include "engine/runtime/weight_gradient_queue.h"
#include "engine/thread_ranks.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::engine {
namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kTokens = 6, kIn = 5, kOut = 4;  // totals over all ranks

// Computes `products` products of x and returns the gradient of a rank's rows of x. Each product has its own
// weight. All weights have equal values.
std::vector<float> gradient_of(Mesh mesh, int products) {
  Rank rank(turbo::make_cpu_device(1), std::move(mesh));
  rank.reserve({.persistent = 1 << 20, .stash = 1 << 20, .scratch = 1 << 20});
  TensorParallel overlap(rank, {.min_bytes = 0, .flops_per_byte = 1, .rows_multiple = 1});
  ParameterStore store;
  store.begin_group("all");
  std::vector<Parameter*> weights;
  for (int i = 0; i < products; ++i) {
    weights.push_back(&store.add("w" + std::to_string(i), {kOut / kRanks, kIn}, Initializer::constant(0)));
    weights.back()->uses.push_back(0);
  }
  store.allocate({.compute = DType::kF32}, rank.persistent());
  WeightGradientQueue queue;
  Tape tape(rank.context(), rank.stash());
  tape.begin({.weight_gradients = &queue});
  std::vector<float> result;
  {
    const Value x = tape.input(DType::kF32, {kTokens / kRanks, kIn}, true);
    test::write(rank, x.tensor(), test::numbers(kTokens / kRanks * kIn, 1));
    for (Parameter* weight : weights) {
      test::write(rank, weight->value, test::numbers(kOut / kRanks * kIn, 2));
      const Value y = gathered_linear(x, *weight, rank.mesh().tensor(), &overlap);
      const Value d_y = tape.input(DType::kF32, y.shape(), false);
      test::write(rank, d_y.tensor(), test::numbers(y.shape().elements(), 3));
      tape.set_gradient(y, d_y.tensor());
    }
    tape.backward();
    result = test::read(rank, tape.gradient(x));
  }
  tape.clear();
  return result;
}

std::vector<std::vector<float>> gradients_of(int products) {
  return test::on_thread_ranks<std::vector<float>>(
      kRanks, {.tensor = kRanks}, [&](Mesh mesh, int) { return gradient_of(std::move(mesh), products); });
}

// The gradient of two users is an exact multiple of the gradient of one user.
TEST(TensorParallel, GradientsOfSeveralUsersOfAnInputAreSummed) {
  const auto once = gradients_of(1), twice = gradients_of(2);
  for (std::size_t r = 0; r < once.size(); ++r) {
    ASSERT_EQ(once[r].size(), static_cast<std::size_t>(kTokens / kRanks * kIn));
    for (std::size_t i = 0; i < once[r].size(); ++i) {
      EXPECT_NE(once[r][i], 0.0F);
      EXPECT_EQ(twice[r][i], 2 * once[r][i]) << r << " " << i;
    }
  }
}

}  // namespace
}  // namespace primus::engine
