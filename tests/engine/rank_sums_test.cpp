// Tests how data ranks sum: each sequence counts once, however many ranks share it, and fp32 numbers are
// summed in pairs.
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "engine/device_values.h"
#include "engine/parallel/data_parallel.h"
#include "engine/runtime/rank.h"
#include "engine/thread_ranks.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::engine {
namespace {

constexpr int kRanks = 4;

// Gives each rank a number, runs body(parallel, number) on all ranks, and returns the resulting numbers.
std::vector<float> on_ranks(const MeshShape& shape, const std::function<float(const Mesh&)>& number,
                            const std::function<void(DataParallel&, const Tensor&)>& body) {
  return test::on_thread_ranks<float>(kRanks, shape, [&](Mesh mesh, int) {
    Rank rank(turbo::make_cpu_device(1), std::move(mesh));
    rank.reserve({.persistent = 1 << 16, .stash = 1 << 16, .scratch = 1 << 16});
    ParameterStore store;
    store.begin_group("all");
    store.add("w", {1}, Initializer::constant(0)).uses.push_back(0);
    store.allocate({.compute = DType::kF32}, rank.persistent());
    DataParallel parallel(rank, store, {});
    const Tensor tensor = rank.persistent(DType::kF32, {1});
    test::write(rank, tensor, std::vector<float>{number(rank.mesh())});
    body(parallel, tensor);
    return test::read(rank, tensor).front();
  });
}

TEST(RankSums, OverDataRanksCountEverySequenceOnce) {
  // Two data ranks, each with two context ranks that share its sequences.
  EXPECT_EQ(on_ranks(
                {.context = 2}, [](const Mesh& mesh) { return static_cast<float>(mesh.data_rank() + 1); },
                [](DataParallel& parallel, const Tensor& tensor) { parallel.sum_over_data(tensor); }),
            std::vector<float>(kRanks, 3.0F));
}

// (1e8 + 1) + (-1e8 + 5) is 8, because fp32 steps by 8 there. A sequential sum would be 5.
TEST(RankSums, ArePairwise) {
  const std::vector<float> numbers = {1e8F, 1.0F, -1e8F, 5.0F};
  EXPECT_EQ(on_ranks(
                {}, [&](const Mesh& mesh) { return numbers[static_cast<std::size_t>(mesh.data_rank())]; },
                [](DataParallel& parallel, const Tensor& tensor) { parallel.sum(tensor); }),
            std::vector<float>(kRanks, 8.0F));
}

}  // namespace
}  // namespace primus::engine
