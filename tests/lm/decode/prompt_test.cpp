// Tests passes that read prompts: the logits that they return, and how many tokens they have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "lm/decode/adapter_decoder.h"
#include "lm/decode/pass_tokens.h"
#include "lm/generate/generate.h"
#include "lm/generate/tiny_model.h"
#include "lm/model/golden_configs.h"
#include "lm/model/outside_families.h"

namespace primus::test {
namespace {

constexpr std::uint64_t kSeed = 11;

ModelConfig longer(ModelConfig config) {
  config.max_positions = std::max<std::int64_t>(config.max_positions, 160);
  config.init_std = 0.3;
  return config;
}

class Prompts : public testing::TestWithParam<NamedConfig> {};

std::vector<NamedConfig> all_configs() {
  std::vector<NamedConfig> all = attention_configs(tiny_config());
  for (NamedConfig& golden : writing_golden_configs()) all.push_back(golden);
  for (NamedConfig& named : all) named.config = longer(named.config);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Configs, Prompts, testing::ValuesIn(all_configs()), [](const auto& named) {
  return std::to_string(named.index) + "_" + named.param.name;
});

// One pass reads the ends of two prompts, a part of a third one, and a single token of a fourth text.
TEST_P(Prompts, TheLastPassReturnsTheLogitsOfTheLastTokens) {
  const ModelConfig& config = GetParam().config;
  const auto decoder = random_decoder(cpu(), config, kSeed,
                                      {.capacity = 100, .pass_tokens = 64, .sequences = 4}, all_families());
  BatchReader& reader = decoder->reader();
  std::vector<std::vector<std::int32_t>> texts;
  for (const std::size_t length : {21U, 30U, 12U, 9U}) {
    texts.push_back(some_tokens(length, config.vocab));
    texts.back()[0] = static_cast<std::int32_t>(texts.size());
    ASSERT_TRUE(reader.begin(texts.back()));
    ASSERT_TRUE(reader.reserve(std::ssize(texts) - 1, 100));
  }
  const BatchReader::Input before[] = {{1, std::span(texts[1]).first(17)}, {3, std::span(texts[3]).first(8)}};
  reader.read(before);
  const BatchReader::Input last[] = {{0, texts[0], true},
                                     {1, std::span(texts[1]).subspan(17), true},
                                     {2, std::span(texts[2]).first(10)},
                                     {3, std::span(texts[3]).subspan(8), true}};
  reader.read(last);
  std::size_t telling = 0;
  for (const std::size_t text : {0U, 1U, 3U}) {
    const std::span<const float> values = reader.next(telling++).values;
    // The text is padded to the capacity, because some rotary factors depend on it.
    std::vector<std::int32_t> padded = texts[text];
    padded.resize(100);
    const std::vector<float> expected =
        teacher_forcing(config, kSeed, padded, all_families())[texts[text].size() - 1];
    ASSERT_EQ(values.size(), expected.size());
    float largest = 0;
    for (const float value : expected) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(values[i], expected[i], 1e-5F * std::max(1.0F, largest)) << "text " << text << ", id " << i;
  }
  for (std::int64_t i = 0; i < 4; ++i)
    EXPECT_EQ(reader.length(i), i == 2 ? 10 : std::ssize(texts[static_cast<std::size_t>(i)]));
}

// A prompt and its first token take one pass, whatever the device returns: all logits, the largest logits, or
// a drawn token.
TEST(Prompt, NeedsNoPassForItsLastToken) {
  const ModelConfig config = longer(tiny_config());
  for (const SamplingSettings& sampling :
       {SamplingSettings{.temperature = 0}, SamplingSettings{.temperature = 1},
        SamplingSettings{.temperature = 1, .top_k = 5}, SamplingSettings{.temperature = 1, .top_p = 0.5}}) {
    const auto decoder = random_decoder(cpu(), config, kSeed, {.capacity = 100, .pass_tokens = 64});
    decoder->submit({.prompt = some_tokens(64, config.vocab),
                     .settings = {.sampling = sampling, .max_tokens = 3, .log_probs = true}});
    EXPECT_TRUE(decoder->step());
    EXPECT_EQ(decoder->counts().read, 64);
    EXPECT_EQ(decoder->counts().written, 1);
    while (decoder->step()) continue;
    EXPECT_EQ(decoder->counts().steps, 3);
  }
}

// Rows without an order (NaN) are read again, also if the pass read a whole prompt.
TEST(Prompt, WithoutOrderEndsOnlyItsText) {
  ModelConfig config = longer(tiny_config());
  config.tied_embeddings = false;
  const auto decoder =
      random_decoder(cpu(), config, kSeed, {.capacity = 100, .pass_tokens = 64, .sequences = 2});
  std::vector<float> embedding;
  {
    const auto same = random_decoder(cpu(), config, kSeed, {.capacity = 100});
    for (engine::Parameter& p : same->store().parameters()) {
      if (p.name != "embedding") continue;
      embedding.resize(static_cast<std::size_t>(p.value.elements()));
      same->rank().compute().copy_to_host(embedding.data(), p.value.data, p.value.bytes());
      same->rank().compute().synchronize();
    }
  }
  ASSERT_FALSE(embedding.empty());
  const std::int32_t bad = 90;
  std::fill_n(embedding.begin() + bad * config.hidden, config.hidden,
              std::numeric_limits<float>::quiet_NaN());
  fill(decoder->rank(), decoder->store(), "embedding", embedding);
  std::vector<std::int32_t> good = some_tokens(20, 80), other = some_tokens(25, 80);
  other.front() = 79;  // otherwise this text waits until the first one has read the common prefix
  other.back() = bad;
  std::vector<std::int32_t> ids;
  const GenerateSettings settings{.sampling = {.temperature = 0}, .max_tokens = 4};
  decoder->submit({.prompt = good, .settings = settings, .on_token = [&](const DecodedToken& token) {
                     ids.push_back(token.id);
                     return true;
                   }});
  decoder->submit({.prompt = other, .settings = settings});
  EXPECT_THROW(decoder->step(), Error);
  while (decoder->step()) continue;
  const auto alone = random_decoder(cpu(), config, kSeed, {.capacity = 100});
  EXPECT_EQ(ids, generate(*alone, good, settings).ids);
}

TEST(PassTokens, FollowTheDeviceAndThePrompts) {
  const DeviceProperties host{.kind = "cpu", .host_memory = true}, gpu{.kind = "cuda"};
  const auto tokens = [](const DeviceProperties& device, std::int64_t prompts) {
    ReaderSettings settings;
    limit_passes(settings, device, prompts);
    EXPECT_EQ(settings.generating_pass_tokens, pass_limits(device).generating);
    return settings.pass_tokens;
  };
  EXPECT_EQ(tokens(gpu, 30), 30);
  EXPECT_EQ(tokens(gpu, 0), 1);
  EXPECT_EQ(tokens(gpu, 100000), 4096);
  EXPECT_EQ(tokens(host, 100000), pass_limits(host).tokens);
  EXPECT_LT(pass_limits(gpu).generating, pass_limits(gpu).tokens);
}

// Chooses the pass sizes of two readers, writes them to the settings, and returns the readers' memory.
engine::MemoryPlan plan_for(const ModelConfig& config, std::vector<ReaderSettings>& settings,
                            std::int64_t available, std::int64_t smallest) {
  engine::Rank rank(cpu());
  InferenceModel model(rank, config, builtin_families(), DType::kF32, config.max_positions);
  std::vector<PlannedReader> readers;
  for (ReaderSettings& own : settings) readers.push_back({&model.model, &own});
  return measure_readers(rank, readers, available, smallest);
}

TEST(PassTokens, BecomeFewerIfMemoryIsShort) {
  ModelConfig config = tiny_config();
  config.max_positions = 600;
  const std::vector<ReaderSettings> wanted{{.capacity = 600, .pass_tokens = 600, .sequences = 3},
                                           {.capacity = 200, .pass_tokens = 50}};
  std::vector<ReaderSettings> all = wanted;
  const engine::MemoryPlan unlimited = plan_for(config, all, 0, 16);
  EXPECT_EQ(all[0].pass_tokens, 600);
  EXPECT_EQ(all[1].pass_tokens, 50);
  std::int64_t previous = 600;
  for (const std::int64_t tokens : {256, 64, 16}) {
    std::vector<ReaderSettings> fixed = wanted;
    for (ReaderSettings& own : fixed) own.pass_tokens = std::min(own.pass_tokens, tokens);
    const std::int64_t needed = plan_for(config, fixed, 0, 16).total();
    EXPECT_LT(needed, unlimited.total());
    std::vector<ReaderSettings> fitted = wanted;
    const engine::MemoryPlan plan = plan_for(config, fitted, needed, 16);
    EXPECT_EQ(plan.total(), needed) << "exactly the memory of a reader with this number of tokens";
    EXPECT_EQ(fitted[0].pass_tokens, tokens);
    EXPECT_LT(fitted[0].pass_tokens, previous);
    EXPECT_EQ(fitted[1].pass_tokens, std::min<std::int64_t>(50, tokens));
    previous = fitted[0].pass_tokens;
  }
  // The smallest passes are chosen even if they do not fit, so that the allocation reports the lack of
  // memory.
  std::vector<ReaderSettings> smallest = wanted;
  plan_for(config, smallest, 1, 16);
  EXPECT_EQ(smallest[0].pass_tokens, 16);
}

// Every pass of a decoder with a fitted number of tokens has the memory that was measured.
TEST(PassTokens, OfAFittedDecoderHaveTheirMemory) {
  ModelConfig config = tiny_config();
  config.max_positions = 600;
  std::vector<ReaderSettings> settings{{.capacity = 600, .pass_tokens = 600, .sequences = 3}};
  std::vector<ReaderSettings> fixed = settings;
  fixed[0].pass_tokens = 128;
  const std::int64_t available = plan_for(config, fixed, 0, 16).total();
  engine::Rank rank(cpu());
  const auto make = [&] {
    return std::make_unique<InferenceModel>(rank, config, builtin_families(), DType::kF32, 600);
  };
  const engine::MemoryPlan plan = [&] {
    const auto measured = make();
    const PlannedReader planned{&measured->model, settings.data()};
    return measure_readers(rank, {&planned, 1}, available, 16);
  }();
  ASSERT_EQ(settings[0].pass_tokens, 128);
  rank.reserve(plan);
  const auto model = make();
  model->store.initialize(rank.context(), kSeed);
  DecodeScheduler decoder(rank, model->model, settings[0]);
  for (std::size_t length = 1; length < 600; length += 37) {
    decoder.submit({.prompt = some_tokens(length, config.vocab),
                    .settings = {.sampling = {.seed = length}, .max_tokens = 3, .log_probs = true}});
  }
  while (decoder.step()) continue;
  EXPECT_GT(decoder.counts().written, 30);
}

}  // namespace
}  // namespace primus::test
