// Tests that the order of samples equals that of Megatron-LM's GPTDataset and BlendedDataset.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "lm/data/dataset.h"
#include "lm/data/gpt_dataset.h"
#include "lm/data/numpy_random.h"
#include "lm/tokenizer/simple.h"

namespace primus::data {
namespace {

using nlohmann::json;

const std::string kGolden = PRIMUS_SOURCE_DIR "/tests/golden/megatron/";

// numpy.sum makes eight partial sums and adds these in pairs. The pairs 1 + 2^60 and -2^60 + 1 lose both
// numbers 1; a sum from left to right would lose only the first 1.
TEST(NumpyRandom, SumsAsNumpyDoes) {
  EXPECT_EQ(pairwise_sum(std::vector<double>{1, 0x1p60, -0x1p60, 1, 1, 1, 1, 1}), 4);
  // Each partial sum takes every eighth number. So 2^60 and -2^60 cancel first, and no other number is lost.
  // A remainder, like the 17th number, is added at the end.
  std::vector<double> sixteen(16, 1);
  sixteen[0] = 0x1p60;
  sixteen[8] = -0x1p60;
  EXPECT_EQ(pairwise_sum(sixteen), 14);
  sixteen.push_back(1);
  EXPECT_EQ(pairwise_sum(sixteen), 15);
  for (const int n : {7, 8, 9, 128, 129, 1000}) {
    std::vector<double> values;
    for (int i = 1; i <= n; ++i) values.push_back(i);
    EXPECT_EQ(pairwise_sum(values), n * (n + 1) / 2) << n;
  }
}

// The order of draws and exchanges is that of the plain loop, for any number of elements.
TEST(NumpyRandom, ShufflesAsThePlainLoopDoes) {
  for (const std::size_t size : {0U, 1U, 2U, 3U, 63U, 64U, 65U, 66U, 128U, 129U, 130U, 1000U}) {
    std::vector<std::int32_t> items(size), expected(size);
    std::iota(items.begin(), items.end(), 0);
    expected = items;
    RandomState random(7), plain(7);
    random.shuffle(std::span(items));
    for (std::size_t i = size; i-- > 1;) std::swap(expected[i], expected[plain.interval(i)]);
    EXPECT_EQ(items, expected) << size;
    EXPECT_EQ(random.interval(1'000'000), plain.interval(1'000'000)) << size;
  }
}

TEST(OrderGolden, EqualsMegatron) {
  const json runs = json::parse(std::ifstream(kGolden + "order.json"));
  ASSERT_EQ(runs.size(), 3u);
  const auto tokenizer = make_null_tokenizer(200'000);
  for (const json& run : runs) {
    DataOptions options;
    for (size_t i = 0; i < run["blend"].size(); ++i) {
      if (!run["weights"].is_null()) options.data_path.push_back(run["weights"][i].dump());
      options.data_path.push_back(kGolden + run["blend"][i].get<std::string>() + "_text_document");
    }
    options.split = run["split"];
    options.seq_length = run["seq"];
    options.seed = run["seed"];
    options.train_samples = run["n"][0];
    options.valid_samples = run["n"][1];
    options.test_samples = run["n"][2];
    const Datasets sets = open_datasets(options, *tokenizer);
    const Dataset* const splits[] = {sets.train.get(), sets.valid.get(), sets.test.get()};
    for (size_t split = 0; split < 3; ++split) {
      const json& expected = run["splits"][split];
      EXPECT_EQ(splits[split]->size(), expected["len"].get<int64_t>());
      std::vector<int32_t> tokens(static_cast<size_t>(options.seq_length) + 1);
      std::vector<float> mask(static_cast<size_t>(options.seq_length));
      for (size_t i = 0; i < expected["samples"].size(); ++i) {
        splits[split]->sample(static_cast<int64_t>(i), tokens, mask);
        EXPECT_EQ(tokens, expected["samples"][i].get<std::vector<int32_t>>())
            << run.dump() << split << " " << i;
      }
    }
  }
}

uint64_t fnv(uint64_t hash, uint64_t value) { return (hash ^ value) * 1099511628211u; }
constexpr uint64_t kFnvStart = 1469598103934665603u;

// Fingerprints of Megatron's mock data at the size of its 7B functional test.
TEST(OrderGolden, MockDataOfThe7BRunEqualsMegatron) {
  const auto source = make_mock_source(131073, 131072);
  const int32_t lengths[] = {3484, 2609, 2094, 1105, 1261, 168, 309, 68};
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(source->length(i), lengths[i]);
  int64_t total = 0;
  for (int64_t i = 0; i < source->sequences(); ++i) total += source->length(i);
  EXPECT_EQ(total, 204'637'097);

  const auto train = split_sequences("1,1,1", source->sequences())[0];
  EXPECT_EQ(train.first, 0);
  EXPECT_EQ(train.last, 33333);
  const GptDataset small(source, {train.first, train.last, 8192, 200, 1234}, {}, "train");
  const SampleOrder& order = small.order();
  EXPECT_EQ(order.epochs, 1);
  EXPECT_EQ(order.samples(), 8324);
  EXPECT_EQ(std::vector(order.documents.begin(), order.documents.begin() + 4),
            (std::vector<int32_t>{30903, 11571, 3134, 32473}));
  EXPECT_EQ(order.rows[1], (SampleOrder::Place{4, 198}));
  EXPECT_EQ(std::vector(order.shuffle.begin(), order.shuffle.begin() + 4),
            (std::vector<uint32_t>{201, 1675, 268, 4657}));
  const auto hashes = [](const SampleOrder& o) {
    std::array<uint64_t, 3> h = {kFnvStart, kFnvStart, kFnvStart};
    for (const int32_t document : o.documents) h[0] = fnv(h[0], static_cast<uint64_t>(document));
    for (const auto& row : o.rows) h[1] = fnv(fnv(h[1], row.document), row.offset);
    for (const uint32_t row : o.shuffle) h[2] = fnv(h[2], row);
    return h;
  };
  EXPECT_EQ(hashes(order),
            (std::array<uint64_t, 3>{5804464951961377735u, 1208622286040704446u, 9491073555332321873u}));

  std::vector<int32_t> tokens(8193);
  std::vector<float> mask(8192);
  uint64_t all = kFnvStart;
  for (int64_t i = 0; i < 200; ++i) {
    small.sample(i, tokens, mask);
    uint64_t one = kFnvStart;
    for (const int32_t token : tokens) {
      one = fnv(one, static_cast<uint64_t>(token));
      all = fnv(all, static_cast<uint64_t>(token));
    }
    if (i == 0) {
      EXPECT_EQ(one, 4825604351076645413u);
    }
  }
  EXPECT_EQ(all, 2308659209085955208u);

  const GptDataset large(source, {train.first, train.last, 8192, 30000, 1234}, {}, "train");
  EXPECT_EQ(large.order().epochs, 4);
  EXPECT_TRUE(large.order().separate_last_epoch);
  EXPECT_EQ(large.size(), 33296);
  EXPECT_EQ(hashes(large.order()),
            (std::array<uint64_t, 3>{14720009523256885943u, 5289165793277281929u, 5723463798027875435u}));
}

// GPTDataset separates the last epoch if less than 80 % of its samples are used. An epoch of 50 tokens has
// four samples of ten tokens, because the last sample needs one more token as its label.
TEST(OrderGolden, AnEpochWithoutARemainderHasOneSampleLess) {
  const auto separate = [](int64_t samples) {
    return build_sample_order(
               {.first = 0, .last = 5, .seq_length = 10, .samples = samples}, [](int64_t) { return 10; },
               "even")
        .separate_last_epoch;
  };
  EXPECT_TRUE(separate(6));   // uses 2 samples of the last epoch, fewer than int(0.8 * 4)
  EXPECT_FALSE(separate(7));  // 3 samples are enough
}

TEST(OrderGolden, Blends) {
  EXPECT_EQ(build_blend_order({.3, .5, .2}, 12).dataset,
            (std::vector<uint16_t>{1, 0, 2, 1, 0, 1, 2, 1, 0, 1, 0, 1}));
  EXPECT_EQ(
      build_exhaustive_blend_order({7, 13, 5}).dataset,
      (std::vector<uint16_t>{1, 0, 2, 1, 0, 1, 2, 1, 0, 1, 1, 2, 0, 1, 1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1}));
}

TEST(OrderGolden, SplitsRoundAsPython) {
  const auto shares = split_sequences("969, 30, 1", 12345);
  EXPECT_EQ(shares[0].last, 11962);
  EXPECT_EQ(shares[1].first, 11962);
  EXPECT_EQ(shares[1].last, 12333);
  EXPECT_EQ(shares[2].first, 12333);
  EXPECT_EQ(shares[2].last, 12345);
  // Borders round to even: half of 5 sequences is 2, and half of 7 is 4. No sequence is in two shares.
  for (const auto& [sequences, border] : {std::pair(5, 2), std::pair(7, 4)}) {
    const auto halves = split_sequences("1,1", sequences);
    EXPECT_EQ(halves[0].first, 0);
    EXPECT_EQ(halves[0].last, border);
    EXPECT_EQ(halves[1].first, border);
    EXPECT_EQ(halves[1].last, sequences);
  }
}

}  // namespace
}  // namespace primus::data
