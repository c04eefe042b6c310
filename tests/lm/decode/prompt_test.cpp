// Tests passes that read prompts: the logits that they return, and how many tokens they have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

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

}  // namespace
}  // namespace primus::test
