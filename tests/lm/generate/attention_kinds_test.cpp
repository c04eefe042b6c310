// For every kind of attention, generation with a cache equals teacher forcing, and documents packed into one
// sequence do not attend to each other.
#include <gtest/gtest.h>

#include <cmath>

#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/golden_configs.h"
#include "lm/model/outside_families.h"
#include "tiny_model.h"

namespace primus::test {
namespace {

constexpr std::uint64_t kSeed = 11;

void expect_close(std::span<const float> a, std::span<const float> b) {
  double largest = 0;
  for (const float v : b) largest = std::max(largest, std::abs(static_cast<double>(v)));
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(a[i]), static_cast<double>(b[i]), 3e-5 * largest) << "logit " << i;
  }
}

class AttentionKinds : public testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Configs, AttentionKinds, testing::ValuesIn(attention_configs(tiny_config())),
                         [](const auto& named) { return named.param.name; });

TEST_P(AttentionKinds, DecodingEqualsTeacherForcing) {
  ModelConfig config = GetParam().config;
  config.max_positions = 256;
  const FamilyRegistry families = all_families();
  // With more than 64 keys, a few queries use another code path of attention.
  const auto tokens = some_tokens(90, config.vocab);
  const auto reference = teacher_forcing(config, kSeed, tokens, families);
  const auto decoder = random_decoder(cpu(), config, kSeed, {.capacity = 100, .pass_tokens = 11}, families);
  expect_close(decoder->read(std::span(tokens).first(60)), reference[59]);
  for (std::size_t i = 60; i < tokens.size(); ++i) {
    SCOPED_TRACE(i);
    expect_close(decoder->read(std::span(tokens).subspan(i, 1)), reference[i]);
  }
}

// Decoding equals teacher forcing with partly rotated heads and caps on the logits of the router and of the
// output.
TEST(CappedLogits, DecodingEqualsTeacherForcing) {
  ModelConfig config = tiny_config();
  config.family = "primus_gpt";
  config.rotary_fraction = 0.5;
  config.attention.qk_norm = true;
  config.logit_cap = 3;
  config.set_layers(&LayerSpec::feed_forward, &kMixture);
  config.moe.experts = 6;
  config.moe.ffn = 24;
  config.moe.logit_cap = 0.7;
  config.moe.router = {.scoring = turbo::RouterRule::Scoring::kSigmoid, .top_k = 2};
  config.max_positions = 256;
  const auto tokens = some_tokens(90, config.vocab);
  const auto reference = teacher_forcing(config, kSeed, tokens);
  config.logit_cap = 0;
  const auto uncapped = teacher_forcing(config, kSeed, tokens);
  config.logit_cap = 3;
  const auto decoder = random_decoder(cpu(), config, kSeed, {.capacity = 100, .pass_tokens = 11});
  expect_close(decoder->read(std::span(tokens).first(60)), reference[59]);
  for (std::size_t i = 60; i < tokens.size(); ++i) {
    SCOPED_TRACE(i);
    expect_close(decoder->read(std::span(tokens).subspan(i, 1)), reference[i]);
    for (std::size_t k = 0; k < reference[i].size(); ++k)
      ASSERT_NEAR(reference[i][k], 3 * std::tanh(uncapped[i][k] / 3), 3e-6) << "logit " << k;
  }
}

// Decoding also equals teacher forcing for every published family, with experts, latent caches and YaRN.
class Families : public testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Goldens, Families, testing::ValuesIn(writing_golden_configs()),
                         [](const auto& named) { return named.param.name; });

TEST_P(Families, DecodingEqualsTeacherForcing) {
  ModelConfig config = GetParam().config;
  config.init_std = 0.2;
  const auto tokens = some_tokens(90, config.vocab);
  const auto reference = teacher_forcing(config, kSeed, tokens);
  const auto decoder = random_decoder(cpu(), config, kSeed, {.capacity = 100, .pass_tokens = 11});
  expect_close(decoder->read(std::span(tokens).first(60)), reference[59]);
  for (std::size_t i = 60; i < tokens.size(); ++i) {
    SCOPED_TRACE(i);
    expect_close(decoder->read(std::span(tokens).subspan(i, 1)), reference[i]);
  }
}

TEST_P(AttentionKinds, PackedDocumentsAreSeparate) {
  ModelConfig config = GetParam().config;
  if (config.attention.chunk > 0)
    GTEST_SKIP() << "attention chunks are counted from the start of the sequence, not of the document";
  config.max_positions = 256;
  const FamilyRegistry families = all_families();
  const auto tokens = some_tokens(100, config.vocab);
  const std::vector<std::int32_t> documents{7, 1, 64, 28};
  const auto packed = teacher_forcing(config, kSeed, tokens, families, documents);
  auto begin = tokens.begin();
  std::size_t row = 0;
  for (const std::int32_t length : documents) {
    for (const auto& single : teacher_forcing(config, kSeed, {begin, begin + length}, families))
      expect_close(packed[row++], single);
    begin += length;
  }
}

}  // namespace
}  // namespace primus::test
