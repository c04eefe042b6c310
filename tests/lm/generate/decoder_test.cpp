#include "lm/decode/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/files/file.h"
#include "device/guard_device.h"
#include "lm/generate/generate.h"
#include "lm/model/blocks/layers.h"
#include "lm/train/rank_training.h"
#include "tiny_model.h"
#include "turbo/gpu/emulated.h"

namespace primus {
namespace {

using test::random_decoder;
using test::some_tokens;
using test::tiny_config;

constexpr std::uint64_t kSeed = 11;

double largest(std::span<const float> values) {
  double result = 0;
  for (const float v : values) result = std::max(result, std::abs(static_cast<double>(v)));
  return result;
}

// A few hundred fp32 additions in another order differ by about 1e-6 of the largest logit.
void expect_close(std::span<const float> a, std::span<const float> b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  const double limit = tolerance * largest(b);
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(a[i]), static_cast<double>(b[i]), limit) << "logit " << i;
  }
}

// Copies weights, because initializing them in `to` would need more memory than decoding does.
void copy_weights(Decoder& from, Decoder& to) {
  auto target = to.store().parameters().begin();
  for (const engine::Parameter& p : from.store().parameters()) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(p.value.bytes()));
    from.rank().compute().copy_to_host(bytes.data(), p.value.data, p.value.bytes());
    from.rank().compute().synchronize();
    to.rank().compute().copy_to_device((target++)->value.data, bytes.data(), p.value.bytes());
    to.rank().compute().synchronize();
  }
}

TEST(Decoder, ReadingTokenByTokenEqualsOnePassOverAll) {
  const ModelConfig config = tiny_config();
  const auto tokens = some_tokens(24, config.vocab);
  const auto reference = test::teacher_forcing(config, kSeed, tokens);
  const auto decoder = random_decoder(test::cpu(), config, kSeed, {.capacity = 32});
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto logits = decoder->read(std::span(tokens).subspan(i, 1));
    EXPECT_EQ(decoder->length(), static_cast<std::int64_t>(i) + 1);
    expect_close(logits, reference[i], 2e-5);
  }
}

TEST(Decoder, ReadsALongPromptInPasses) {
  const ModelConfig config = tiny_config();
  const auto tokens = some_tokens(40, config.vocab);
  const auto reference = test::teacher_forcing(config, kSeed, tokens);
  for (const std::int64_t pass_tokens : {1, 7, 16, 64}) {
    const auto decoder =
        random_decoder(test::cpu(), config, kSeed, {.capacity = 40, .pass_tokens = pass_tokens});
    expect_close(decoder->read(tokens), reference.back(), 2e-5);
  }
}

TEST(Decoder, ComputesInBf16) {
  const ModelConfig config = tiny_config();
  const auto tokens = some_tokens(20, config.vocab);
  const auto reference = test::teacher_forcing(config, kSeed, tokens);
  const auto decoder = random_decoder(test::cpu(), config, kSeed, {.compute = DType::kBF16, .capacity = 32});
  // The tolerance covers a dozen consecutive roundings of 2^-8 each.
  expect_close(decoder->read(tokens), reference.back(), 5e-2);
}

// Tests products that a GPU fuses during decoding (engine/operators/normed.h), with the biases and head norms
// of some families. The emulated kernels agree with the CPU kernels.
TEST(Decoder, FusedProductsOfAGpuAgreeWithTheCpu) {
  ModelConfig grouped = tiny_config();
  grouped.layers = 1, grouped.hidden = 1032;  // shorter rows are not fused
  grouped.ffn = 16, grouped.vocab = 40;       // emulated products are slow
  grouped.init_std = 0.05;
  ModelConfig biased = grouped, normed = grouped;
  biased.family = "qwen2", normed.family = "qwen3";
  for (const ModelConfig& config : {grouped, biased, normed}) {
    const auto tokens = some_tokens(20, config.vocab);
    const ReaderSettings settings{.compute = DType::kBF16, .capacity = 32};
    const auto cpu = random_decoder(test::cpu(), config, kSeed, settings);
    SCOPED_TRACE(config.family);
    test::TestDecoder gpu(std::make_unique<test::GuardDevice>(2, turbo::emulated_kernel_table(32)), config,
                          builtin_families(), settings);
    copy_weights(*cpu, gpu);
    // Reads the tokens in a pass of two rows and a pass of one row. The tolerance is that of two bf16
    // computations (ComputesInBf16).
    const auto some = std::span(tokens).first(3);
    expect_close(gpu.read(some), cpu->read(some), 5e-2);
  }
}

// Tests the kernels of a few tokens that compute several operators of a layer: shared experts, gated delta
// networks and cached latents. The prompt is read by separate operators. The further tokens are more than the
// delta rule keeps, so its state is written.
TEST(Decoder, FusedLayersOfAGpuAgreeWithTheCpu) {
  for (const char* name : {"qwen3_5_moe", "deepseek_v2", "gated_deltanet"}) {
    SCOPED_TRACE(name);
    const Path file = Path(PRIMUS_SOURCE_DIR) / "tests/golden/models" / name / "config.json";
    ModelConfig config = read_model_config(read_file(file), file.string(), builtin_families());
    const auto tokens = some_tokens(10, config.vocab);
    const ReaderSettings settings{.compute = DType::kBF16, .capacity = 32};
    const auto cpu = random_decoder(test::cpu(), config, kSeed, settings);
    test::TestDecoder gpu(std::make_unique<test::GuardDevice>(2, turbo::emulated_kernel_table(32)), config,
                          builtin_families(), settings);
    copy_weights(*cpu, gpu);
    for (std::size_t at = 0; at < tokens.size(); at += at == 0 ? 3 : 1) {
      const auto some = std::span(tokens).subspan(at, at == 0 ? 3 : 1);
      // The tolerance is that of two bf16 computations (ComputesInBf16).
      expect_close(gpu.read(some), cpu->read(some), 5e-2);
    }
  }
}

// Ranks gather only parameters that operators declare. A fused product also reads other parameters, so its
// norm is a separate operator on such ranks.
TEST(Decoder, RanksThatGatherWeightsDoNotFuseProducts) {
  ModelConfig config = tiny_config();
  config.family = "qwen2";  // with biases
  config.layers = 1, config.hidden = 1032, config.ffn = 16, config.vocab = 40;
  config.init_std = 0.05;
  const auto tokens = some_tokens(6, config.vocab);
  SessionSettings settings{.model = config,
                           .compute = DType::kBF16,
                           .step = {.micro_batch = 1, .sequence = 8, .microbatches = 1},
                           .optimizer = {},
                           .sharding = engine::Sharding::kParameters,
                           .sample_capacity = 16};
  const auto logits_of = [&](engine::Rank& rank) {
    const auto session = open_session(rank, settings, builtin_families());
    session->store().initialize(rank.context(), kSeed);
    const auto decoder = session->make_decoder();
    const std::span<const float> logits = test::TokenReader(decoder->reader()).read(tokens);
    return std::vector<float>(logits.begin(), logits.end());
  };
  engine::Rank single(test::cpu());
  const std::vector<float> expected = logits_of(single);
  test::on_ranks(
      2, {},
      [&](engine::Rank& rank) {
        // The tolerance is that of two bf16 computations (ComputesInBf16).
        expect_close(logits_of(rank), expected, 5e-2);
      },
      false, [] { return std::make_unique<test::GuardDevice>(1, turbo::emulated_kernel_table(32)); });
}

// Frozen matrices in 4 bits, with and without adapters. The emulated kernels agree with the CPU kernels.
TEST(Decoder, ReadsMatricesInFourBits) {
  ModelConfig dense = tiny_config();
  dense.layers = 1, dense.hidden = 1032, dense.ffn = 16, dense.vocab = 40;
  dense.init_std = 0.05;
  const Path file = Path(PRIMUS_SOURCE_DIR) / "tests/golden/models/qwen3_5_moe/config.json";
  const ModelConfig mixture = read_model_config(read_file(file), file.string(), builtin_families());
  for (ModelConfig config : {dense, mixture}) {
    SCOPED_TRACE(config.family);
    config.lora = {.dim = 4, .alpha = 4, .modules = {"linear_proj"}};
    config.lora.training.base.type = turbo::FourBitType::kNf4;
    const auto tokens = some_tokens(6, config.vocab);
    const SessionSettings settings{.model = config,
                                   .compute = DType::kBF16,
                                   .step = {.micro_batch = 1, .sequence = 8, .microbatches = 1},
                                   .optimizer = {},
                                   .sample_capacity = 16};
    const auto logits_of = [&](std::unique_ptr<Device> device) {
      engine::Rank rank(std::move(device));
      const auto session = open_session(rank, settings, builtin_families());
      session->store().initialize(rank.context(), kSeed);
      const auto decoder = session->make_decoder();
      test::TokenReader reader(decoder->reader());
      reader.read(std::span(tokens).first(5));
      const std::span<const float> logits = reader.read(std::span(tokens).last(1));
      return std::vector<float>(logits.begin(), logits.end());
    };
    // The tolerance is that of two bf16 computations (ComputesInBf16).
    expect_close(logits_of(std::make_unique<test::GuardDevice>(2, turbo::emulated_kernel_table(32))),
                 logits_of(test::cpu()), 5e-2);
  }
}

TEST(Decoder, DropsTruncatedTokens) {
  const ModelConfig config = tiny_config();
  const auto tokens = some_tokens(20, config.vocab);
  const auto decoder = random_decoder(test::cpu(), config, kSeed, {.capacity = 32});
  const auto first = decoder->read(std::span(tokens).first(10));
  const std::vector<float> expected(first.begin(), first.end());
  decoder->read(std::span(tokens).subspan(10));
  decoder->truncate(9);
  EXPECT_EQ(decoder->length(), 9);
  const auto again = decoder->read(std::span(tokens).subspan(9, 1));
  EXPECT_TRUE(std::equal(again.begin(), again.end(), expected.begin(), expected.end()));
  decoder->truncate(50);  // this length is beyond the end, so nothing changes
  EXPECT_EQ(decoder->length(), 10);
}

// Expects that the last few tokens can be dropped in one truncation or in several if layers keep only their
// last inputs or a state. After a longer truncation, all tokens are read again. `exactly`: results are equal
// bit by bit.
void expect_short_memory(const ModelConfig& config, bool exactly) {
  const auto tokens = some_tokens(30, config.vocab);
  const auto decoder = random_decoder(test::cpu(), config, kSeed, {.capacity = 32});
  const auto read = [&](std::size_t from, std::size_t to) {
    const auto logits = decoder->read(std::span(tokens).subspan(from, to - from));
    return std::vector<float>(logits.begin(), logits.end());
  };
  const std::vector<float> expected = read(0, 15);
  read(15, 20);
  decoder->truncate(17);
  decoder->truncate(14);
  ASSERT_EQ(decoder->length(), 14);
  EXPECT_THAT(read(14, 15), testing::Pointwise(testing::FloatNear(exactly ? 0 : 1e-5F), expected));
  // Tokens read since position 14 have overwritten older inputs.
  read(15, 17);
  decoder->truncate(13);
  EXPECT_EQ(decoder->length(), 0);
  EXPECT_EQ(read(0, 15), expected);
  read(15, 30);
  decoder->truncate(15);
  EXPECT_EQ(decoder->length(), 0);
}

TEST(Decoder, DropsAllTokensIfConvolutionsCannotGoBack) {
  ModelConfig config = tiny_config();
  config.family = "lfm2";
  config.at(1).attention = &kShortConvolution;
  expect_short_memory(config, true);
}

TEST(Decoder, DropsAllTokensIfStatesCannotGoBack) {
  ModelConfig config = tiny_config();
  config.family = "qwen3_5_text";
  config.centred_norms = config.attention.output_gate = true;
  config.linear = {.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 6, .conv_width = 4};
  config.at(0).attention = &kGatedDeltaNet;
  expect_short_memory(config, false);
}

TEST(Decoder, RefusesTextsThatDoNotFit) {
  const ModelConfig config = tiny_config();
  const auto decoder = random_decoder(test::cpu(), config, kSeed, {.capacity = 8});
  EXPECT_THROW(decoder->read(some_tokens(9, config.vocab)), Error);
  EXPECT_THROW(decoder->read({}), Error);
  const std::vector<std::int32_t> beyond{static_cast<std::int32_t>(config.vocab)}, negative{-1};
  EXPECT_THROW(decoder->read(beyond), Error);
  EXPECT_THROW(decoder->read(negative), Error);
  EXPECT_EQ(decoder->length(), 0);
  decoder->read(some_tokens(8, config.vocab));
  EXPECT_THROW(decoder->read(some_tokens(1, config.vocab)), Error);
  EXPECT_THROW(Decoder(test::cpu(), config, builtin_families(), {.capacity = config.max_positions + 1}),
               Error);
  EXPECT_THROW(Decoder(test::cpu(), config, builtin_families(), {.capacity = 0}), Error);
}

TEST(Decoder, NeverTouchesDeviceMemory) {
  const ModelConfig config = tiny_config();
  const auto tokens = some_tokens(20, config.vocab);
  auto write = [&](std::unique_ptr<Device> device) {
    const auto decoder = random_decoder(std::move(device), config, kSeed, {.capacity = 32, .pass_tokens = 6});
    return generate(*decoder, tokens, {.sampling = {.temperature = 0.9}, .max_tokens = 8}).ids;
  };
  EXPECT_EQ(write(std::make_unique<test::GuardDevice>(2, turbo::cpu_kernel_table())), write(test::cpu()));
}

}  // namespace
}  // namespace primus
