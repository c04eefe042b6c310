// Tests that sequences which are decoded together equal, token by token, sequences decoded separately.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "device/guard_device.h"
#include "device/recording_device.h"
#include "lm/generate/batch_generate.h"
#include "lm/model/golden_configs.h"
#include "lm/model/outside_families.h"
#include "tiny_model.h"

namespace primus::test {
namespace {

constexpr std::uint64_t kSeed = 11;

std::unique_ptr<AdapterDecoder> batch_decoder(std::unique_ptr<Device> device, const ModelConfig& config,
                                              const ReaderSettings& settings) {
  auto decoder = std::make_unique<AdapterDecoder>(std::move(device), std::span(&config, 1), all_families(),
                                                  std::vector{settings});
  decoder->store(0).initialize(decoder->rank().context(), kSeed);
  decoder->rank().compute().synchronize();
  return decoder;
}

// Returns prompts of different lengths: one token, parts of a page or pass, and more than a page or pass.
std::vector<BatchPrompt> some_prompts(const ModelConfig& config, std::int64_t longest) {
  std::vector<BatchPrompt> prompts;
  const std::vector<std::int64_t> lengths{1, 5, 70, 17, 33, 2, 64, 40};
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    std::vector<std::int32_t> tokens = some_tokens(static_cast<std::size_t>(longest), config.vocab);
    std::rotate(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(3 * i), tokens.end());
    tokens.resize(static_cast<std::size_t>(std::min(lengths[i], longest)));
    GenerateSettings settings{
        .sampling = {.temperature = i % 2 == 0 ? 0.0 : 0.9, .top_p = i % 3 == 0 ? 0.9 : 1.0},
        .max_tokens = 4 + static_cast<std::int64_t>(5 * i % 12)};
    settings.sampling.seed = 100 + i;
    if (i == 3) settings.stop_ids = {7, 8, 9, 10, 11, 12};
    prompts.push_back({tokens, settings});
  }
  return prompts;
}

std::vector<Generation> together(AdapterDecoder& decoder, const std::vector<BatchPrompt>& prompts) {
  std::vector<Generation> texts;
  generate_by_models(decoder, {&prompts, 1}, {.done = [&](std::size_t i, Generation&& text) {
                       EXPECT_EQ(i, texts.size());
                       texts.push_back(std::move(text));
                     }});
  EXPECT_EQ(texts.size(), prompts.size());
  return texts;
}

void expect_each_as_alone(const ModelConfig& config, DType compute) {
  const std::int64_t longest = std::min<std::int64_t>(70, config.max_positions - 8);
  const std::vector<BatchPrompt> prompts = some_prompts(config, longest);
  ReaderSettings settings{.compute = compute,
                          .capacity = std::min<std::int64_t>(config.max_positions, 100),
                          .pass_tokens = 24,
                          .sequences = 3};
  settings.pages = 4;  // enough for two of the longest texts or four short ones, so some texts must wait
  const auto batch = batch_decoder(cpu(), config, settings);
  const std::vector<Generation> texts = together(*batch, prompts);
  EXPECT_EQ(batch->use(0).reader().free_pages(), 4);
  const auto single = random_decoder(cpu(), config, kSeed, settings, all_families());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Generation separate = generate(*single, prompts[i].tokens, prompts[i].settings);
    EXPECT_EQ(texts[i].ids, separate.ids) << "prompt " << i;
    EXPECT_EQ(texts[i].reason, separate.reason) << "prompt " << i;
    EXPECT_TRUE(!separate.ids.empty() || separate.reason == StopReason::kStopToken);
  }
}

class BatchFamilies : public testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Goldens, BatchFamilies, testing::ValuesIn(writing_golden_configs()),
                         [](const auto& named) { return named.param.name; });

TEST_P(BatchFamilies, EveryTextEqualsTheTextGeneratedAlone) {
  ModelConfig config = GetParam().config;
  config.init_std = 0.2;
  expect_each_as_alone(config, DType::kF32);
}

class BatchAttentionKinds : public testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Configs, BatchAttentionKinds, testing::ValuesIn(attention_configs(tiny_config())),
                         [](const auto& named) { return named.param.name; });

TEST_P(BatchAttentionKinds, EveryTextEqualsTheTextGeneratedAlone) {
  ModelConfig config = GetParam().config;
  config.max_positions = 256;
  expect_each_as_alone(config, DType::kF32);
}

TEST(Batch, GuardedMemoryIsNeverTouchedAndGivesTheSameTexts) {
  const ModelConfig config = tiny_config();
  const ReaderSettings settings{.capacity = 64, .pass_tokens = 16, .sequences = 4};
  const std::vector<BatchPrompt> prompts = some_prompts(config, 50);
  const auto plain = batch_decoder(cpu(), config, settings);
  const auto guarded =
      batch_decoder(std::make_unique<GuardDevice>(2, turbo::cpu_kernel_table()), config, settings);
  const std::vector<Generation> expected = together(*plain, prompts), actual = together(*guarded, prompts);
  for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(actual[i].ids, expected[i].ids);
}

TEST(Batch, RecordedPassesWriteTheSameTexts) {
  ModelConfig config = tiny_config();
  config.max_positions = 128;
  const ReaderSettings settings{.capacity = 100, .pass_tokens = 16, .sequences = 3};
  std::vector<BatchPrompt> prompts = some_prompts(config, 50);
  for (const bool greedy : {false, true}) {
    for (BatchPrompt& prompt : prompts) {
      if (greedy) prompt.settings.sampling = {.temperature = 0};
      prompt.settings.max_tokens = 20;
    }
    const auto counts = std::make_shared<RecordingDevice::Counts>();
    const auto plain = batch_decoder(cpu(), config, settings);
    const auto recorded = batch_decoder(std::make_unique<RecordingDevice>(cpu(), counts), config, settings);
    const std::vector<Generation> expected = together(*plain, prompts), actual = together(*recorded, prompts);
    for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(actual[i].ids, expected[i].ids) << i;
    EXPECT_GT(counts->replays, 20) << "most passes must be replayed";
  }
}

// The top-k logits that a pass returns are the k largest logits of its complete rows.
TEST(Batch, TopTokensEqualThoseOfAllLogits) {
  const ModelConfig config = tiny_config();
  const auto decoder = batch_decoder(cpu(), config, {.capacity = 20, .sequences = 3});
  BatchReader& reader = decoder->use(0).reader();
  const std::vector<std::int32_t> tokens = some_tokens(3, config.vocab);
  std::vector<BatchReader::Input> inputs;
  for (std::int64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(reader.reserve(i, 20));
    inputs.push_back({i, {&tokens[static_cast<std::size_t>(i)], 1}, true});
  }
  reader.read(inputs);
  std::vector<std::vector<float>> all;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto row = reader.next(i).values;
    EXPECT_TRUE(reader.next(i).ids.empty());
    all.emplace_back(row.begin(), row.end());
  }
  for (const std::int64_t top_k : {1, 5, 64}) {
    for (std::int64_t i = 0; i < 3; ++i) {
      reader.release(i);
      ASSERT_TRUE(reader.reserve(i, 20));
    }
    reader.read(inputs, {.top_k = top_k, .vocab = 70});
    for (std::size_t i = 0; i < 3; ++i) {
      const NextLogits next = reader.next(i);
      ASSERT_GE(static_cast<std::int64_t>(next.ids.size()), top_k);
      std::vector<std::int32_t> ids(70);
      std::iota(ids.begin(), ids.end(), 0);
      std::stable_sort(ids.begin(), ids.end(), [&](auto a, auto b) { return all[i][a] > all[i][b]; });
      for (std::size_t j = 0; j < next.ids.size(); ++j) {
        EXPECT_EQ(next.ids[j], ids[j]);
        EXPECT_EQ(next.values[j], all[i][ids[j]]);
      }
    }
  }
  // With top_k above the limit of the device, all logits are returned.
  reader.read(inputs, {.top_k = 65});
  EXPECT_TRUE(reader.next(0).ids.empty());
}

// Returns a reader that has read one token of each of three sequences, which gave logits.
std::unique_ptr<AdapterDecoder> told(const ModelConfig& config, const ReaderSettings& settings,
                                     const WantedLogits& wanted, const SamplingSettings& sampling = {}) {
  auto decoder = batch_decoder(cpu(), config, settings);
  BatchReader& reader = decoder->use(0).reader();
  const std::vector<std::int32_t> tokens = some_tokens(3, config.vocab);
  std::vector<BatchReader::Input> inputs;
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(reader.reserve(i, 20));
    inputs.push_back({i, {&tokens[static_cast<std::size_t>(i)], 1}, true, draw_of(sampling, i + 1)});
  }
  reader.read(inputs, wanted);
  return decoder;
}

TEST(Batch, DrawnTokensEqualThoseSampledFromAllLogits) {
  const ModelConfig config = tiny_config();
  const ReaderSettings settings{.capacity = 20, .sequences = 3};
  for (const double temperature : {0.0, 0.3, 1.0, 3.0}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const SamplingSettings sampling{.temperature = temperature, .seed = seed};
      const auto all = told(config, settings, {}), drawn = told(config, settings, {.draws = true}, sampling);
      for (std::size_t i = 0; i < 3; ++i) {
        const auto position = static_cast<std::int64_t>(i) + 1;
        const NextLogits next = drawn->use(0).reader().next(i);
        ASSERT_EQ(next.ids.size(), 1U);
        EXPECT_EQ(sample_token(next, sampling, position),
                  sample_token(all->use(0).reader().next(i), sampling, position));
      }
    }
  }
}

TEST(Batch, KeptLogitsGiveTheSameLogProbabilities) {
  const ModelConfig config = tiny_config();
  ReaderSettings settings{.capacity = 20, .sequences = 3};
  const WantedLogits wanted{.log_probs = true, .draws = true};
  const std::vector<std::int32_t> chosen{1, 5, 2};
  const std::vector<float> multiplied = told(config, settings, wanted)->use(0).reader().log_probs(chosen);
  settings.keep_logits = true;
  EXPECT_EQ(told(config, settings, wanted)->use(0).reader().log_probs(chosen), multiplied);
}

TEST(Batch, NanLogitsAreReported) {
  const ModelConfig config = tiny_config();
  const auto decoder = batch_decoder(cpu(), config, {.capacity = 20, .sequences = 2});
  std::vector<float> norm(static_cast<std::size_t>(config.hidden), NAN);
  fill(decoder->rank(), decoder->store(0), "final_norm", norm);
  const std::vector<BatchPrompt> prompts(
      2, {some_tokens(3, config.vocab), {.sampling = {.temperature = 0}, .max_tokens = 2}});
  try {
    together(*decoder, prompts);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNumerics);
    EXPECT_NE(std::string(error.what()).find("the logit of token 0 is"), std::string::npos) << error.what();
  }
}

TEST(Batch, TextsEndWithTheContext) {
  const ModelConfig config = tiny_config();
  const auto decoder = batch_decoder(cpu(), config, {.capacity = 20, .sequences = 2});
  std::vector<BatchPrompt> prompts(3, {some_tokens(18, config.vocab), {.sampling = {.temperature = 0}}});
  prompts[1].settings.max_tokens = 0;
  const std::vector<Generation> texts = together(*decoder, prompts);
  EXPECT_EQ(texts[0].reason, StopReason::kContextFull);
  EXPECT_EQ(texts[0].ids.size(), 3U);
  EXPECT_EQ(texts[1].reason, StopReason::kMaxTokens);
  EXPECT_TRUE(texts[1].ids.empty());
  EXPECT_EQ(texts[2].ids, texts[0].ids);
}

TEST(Batch, TextsThatDoNotFitAreRefusedBeforeReading) {
  const ModelConfig config = tiny_config();
  const auto decoder = batch_decoder(cpu(), config, {.capacity = 64, .sequences = 3, .pages = 2});
  const auto run = [&](std::vector<std::int32_t> tokens) {
    std::vector<BatchPrompt> prompts(2, {some_tokens(3, config.vocab), {.max_tokens = 1}});
    prompts[1].tokens = std::move(tokens);
    generate_by_models(*decoder, {&prompts, 1}, {.done = [](std::size_t, Generation&&) { FAIL(); }});
  };
  EXPECT_THROW(run({}), Error);
  EXPECT_THROW(run(some_tokens(65, config.vocab)), Error);

  BatchReader& reader = decoder->use(0).reader();
  const std::vector<std::int32_t> tokens = some_tokens(10, config.vocab);
  const BatchReader::Input input{1, tokens};
  EXPECT_THROW(reader.read({&input, 1}), Error) << "no pages are reserved";
  EXPECT_TRUE(reader.reserve(0, 64) && reader.reserve(1, 10));
  EXPECT_FALSE(reader.reserve(2, 1)) << "only two pages exist";
  EXPECT_EQ(reader.free_pages(), 0);
  reader.read({&input, 1});
  EXPECT_EQ(reader.length(1), 10);
  reader.release(1);
  EXPECT_TRUE(reader.reserve(2, 64));
  EXPECT_THROW(batch_decoder(cpu(), config, {.capacity = 64, .sequences = 0}), Error);
  ModelConfig longer = config;
  longer.max_positions = 256;
  EXPECT_THROW(batch_decoder(cpu(), longer, {.capacity = 129, .sequences = 2, .pages = 2}), Error);
}

}  // namespace
}  // namespace primus::test
