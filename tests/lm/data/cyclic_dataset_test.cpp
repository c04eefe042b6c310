#include "lm/data/cyclic_dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "data_test_util.h"

namespace primus::data {
namespace {

// Sample i consists of the token i.
class Numbers final : public Dataset {
 public:
  explicit Numbers(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  int64_t seq_length() const override { return 1; }
  void sample(int64_t index, std::span<int32_t> tokens, std::span<float> loss_mask) const override {
    EXPECT_GE(index, 0);
    EXPECT_LT(index, size_);
    std::ranges::fill(tokens, static_cast<int32_t>(index));
    std::ranges::fill(loss_mask, 1.0f);
  }
  std::string description() const override { return "numbers"; }

 private:
  int64_t size_;
};

int32_t sample_at(const Dataset& data, int64_t draw) {
  std::vector<int32_t> tokens(2);
  std::vector<float> mask(1);
  data.sample(draw, tokens, mask);
  return tokens[0];
}

// The expected values are the output of torch 1.13 and 2.x for torch.randperm(n,
// generator=torch.Generator().manual_seed(seed)).
TEST(TorchPermutation, EqualsTorch) {
  EXPECT_EQ(torch_permutation(10, 0), (std::vector<uint32_t>{4, 1, 7, 5, 3, 9, 0, 8, 6, 2}));
  EXPECT_EQ(torch_permutation(1, 3), (std::vector<uint32_t>{0}));
  EXPECT_TRUE(torch_permutation(0, 3).empty());
}

// Computes the order of Megatron's MegatronPretrainingRandomSampler for one rank, by a simple loop.
std::vector<std::vector<int64_t>> megatron_epochs(int64_t total, int64_t batch, int64_t ranks, int64_t rank,
                                                  bool sharded, int64_t epochs) {
  std::vector<std::vector<int64_t>> yielded;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    std::vector<int64_t> order;
    if (sharded) {
      const int64_t bucket = total / (batch * ranks) * batch;
      for (uint32_t i : torch_permutation(bucket, static_cast<uint64_t>(epoch)))
        order.push_back(rank * bucket + i);
    } else {
      const std::vector<uint32_t> all =
          torch_permutation(total / batch * batch, static_cast<uint64_t>(epoch));
      for (size_t i = static_cast<size_t>(rank); i < all.size(); i += static_cast<size_t>(ranks))
        order.push_back(all[i]);
    }
    // An epoch consists of complete microbatches of all ranks; the remaining samples are dropped.
    order.resize(static_cast<size_t>(total / (batch * ranks) * batch));
    for (size_t i = 0; i < order.size(); i += static_cast<size_t>(batch)) {
      yielded.emplace_back(order.begin() + static_cast<ptrdiff_t>(i),
                           order.begin() + static_cast<ptrdiff_t>(i + static_cast<size_t>(batch)));
    }
  }
  return yielded;
}

TEST(CyclicDataset, DrawsAsMegatronsRandomSampler) {
  for (const bool sharded : {true, false}) {
    for (const auto& [total, batch, ranks] :
         {std::tuple{23, 2, 1}, std::tuple{24, 3, 2}, std::tuple{31, 2, 4}, std::tuple{8, 4, 2}}) {
      const auto data = make_cyclic(std::make_unique<Numbers>(total),
                                    {.micro_batch_size = batch, .dp_size = ranks, .sharded = sharded});
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const auto expected = megatron_epochs(total, batch, ranks, rank, sharded, 3);
        for (size_t micro = 0; micro < expected.size(); ++micro) {
          for (int64_t row = 0; row < batch; ++row) {
            const int64_t draw = static_cast<int64_t>(micro) * batch * ranks + rank * batch + row;
            EXPECT_EQ(sample_at(*data, draw), expected[micro][static_cast<size_t>(row)])
                << total << " " << batch << " " << ranks << " " << sharded << " draw " << draw;
          }
        }
      }
    }
  }
}

TEST(CyclicDataset, HasEachSampleOncePerEpochInANewOrder) {
  const auto data = make_cyclic(std::make_unique<Numbers>(20), {.micro_batch_size = 4});
  std::vector<std::vector<int32_t>> epochs(3);
  for (int64_t draw = 0; draw < 60; ++draw)
    epochs[static_cast<size_t>(draw / 20)].push_back(sample_at(*data, draw));
  for (const auto& epoch : epochs) EXPECT_EQ(std::set<int32_t>(epoch.begin(), epoch.end()).size(), 20u);
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_EQ(sample_at(*data, 20), epochs[1][0]);  // reading an earlier sample changes nothing
}

TEST(CyclicDataset, RefusesTooFewSamples) {
  const std::string error =
      error_of([] { make_cyclic(std::make_unique<Numbers>(3), {.micro_batch_size = 2, .dp_size = 2}); });
  EXPECT_NE(error.find("numbers has 3 samples, but one microbatch on all ranks needs 4"), std::string::npos);
}

}  // namespace
}  // namespace primus::data
