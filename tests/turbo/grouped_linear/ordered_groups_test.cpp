// Products of experts on batch-invariant GPUs: a row has the same bits for any number of rows of its expert
// and of the other experts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "turbo/grouped_linear/grouped_linear.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Sizes {
  std::int64_t in, out;
};

// The matrices of the experts, and tokens of which a product picks some.
struct Experts {
  static constexpr std::int64_t kTokens = 300, kExperts = 3;

  Experts(OperatorBench& bench, const Sizes& s)
      : x(bench.upload(rounded(random_values(kTokens * s.in, 1), DType::kBF16), DType::kBF16,
                       {kTokens, s.in})),
        weights(bench.upload(rounded(random_values(kExperts * s.out * s.in, 2), DType::kBF16), DType::kBF16,
                             {kExperts, s.out, s.in})) {}

  // Returns the bits of the results of `picks`, of which expert e has rows[e].
  std::vector<unsigned char> product(OperatorBench& bench, const Values& picks, const Values& rows) const {
    Values offsets = {0};
    for (const double count : rows) offsets.push_back(offsets.back() + count);
    const auto all = std::ssize(picks);
    const Tensor y = bench.empty(DType::kBF16, {all, weights.shape[1]});
    bench.run(GroupedGemm{.role = GemmRole::kForward,
                          .a = x,
                          .b = weights,
                          .c = y,
                          .offsets = bench.upload(offsets, DType::kI32, {std::ssize(offsets)}),
                          .a_rows = bench.upload(picks, DType::kI32, {all}),
                          .workspace = {}});
    return bench.bytes(y);
  }

  Tensor x, weights;
};

TEST(OrderedGroups, ARowHasTheSameBitsForAnyNumberOfRows) {
  for (const DeviceUnderTest& device : batch_invariant_gpus()) {
    // Wide and narrow tiles, whose last columns and last step of k are partial.
    std::vector<Sizes> all = {{72, 264}, {200, 40}};
    // On hardware: the matrices of Qwen3-30B-A3B, and a low rank.
    if (!device.plugin.empty()) all.insert(all.end(), {{2048, 1536}, {768, 2048}, {2048, 16}, {16, 2048}});
    for (const Sizes& s : all) {
      OperatorBench bench(device);
      const Experts experts(bench, s);
      // All tokens go to the middle expert, between rows of the others.
      constexpr std::int64_t kBefore = 5, kAfter = 2;
      Values picks(Experts::kTokens + kBefore + kAfter);
      std::iota(picks.begin() + kBefore, picks.end() - kAfter, 0.0);
      const std::vector<unsigned char> bits =
          experts.product(bench, picks, {kBefore, Experts::kTokens, kAfter});
      const std::int64_t row = s.out * size_of(DType::kBF16);
      for (const std::int64_t count : {1, 2, 7, 8, 64, 65, 129}) {
        for (const std::int64_t first : {std::int64_t{0}, std::int64_t{3}, Experts::kTokens - count}) {
          Values some(static_cast<std::size_t>(count));
          std::iota(some.begin(), some.end(), static_cast<double>(first));
          const std::vector<unsigned char> found =
              experts.product(bench, some, {0, static_cast<double>(count), 0});
          ASSERT_TRUE(std::equal(found.begin(), found.end(), bits.begin() + (kBefore + first) * row))
              << device.name() << ": " << s.out << " x " << s.in << ", " << count << " rows from " << first;
        }
      }
    }
  }
}

// The sums of a shared expert would be divided.
TEST(OrderedGroups, SharedExpertsAreNotFused) {
  for (DeviceUnderTest device : batch_invariant_gpus()) {
    for (const bool invariant : {false, true}) {
      device.batch_invariant = invariant;
      OperatorBench bench(device);
      GroupedGemm call{.role = GemmRole::kForward,
                       .a = Tensor(nullptr, DType::kBF16, {1, 64}),
                       .b = Tensor(nullptr, DType::kBF16, {16, 32, 64}),
                       .c = Tensor(nullptr, DType::kBF16, {8, 16}),
                       .chosen = {.experts = Tensor(nullptr, DType::kI32, {1, 8})},
                       .workspace = {}};
      EXPECT_TRUE(is_taken(bench.device(), call)) << device.name();
      call.chosen.shared = {.weights = Tensor(nullptr, DType::kBF16, {32, 64}),
                            .rows = Tensor(nullptr, DType::kBF16, {1, 16})};
      EXPECT_EQ(is_taken(bench.device(), call), !invariant) << device.name();
    }
  }
}

TEST(OrderedGroups, OtherProductsAreRefused) {
  for (const DeviceUnderTest& device : batch_invariant_gpus()) {
    OperatorBench bench(device);
    const Experts experts(bench, {12, 16});
    try {
      experts.product(bench, {0, 1}, {1, 1, 0});
      FAIL() << "rows of 24 bytes";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_THAT(error.what(), testing::HasSubstr("products of 3 experts with 16 x 12 elements"));
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
