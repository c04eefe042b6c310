// Tests of the benchmark of decoding.
#include "bench/decode_benchmark.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "turbo/devices/devices.h"

namespace primus {
namespace {

ModelConfig tiny() {
  ModelConfig c;
  c.layers = 2, c.hidden = 32, c.ffn = 48, c.heads = 4, c.kv_heads = 2, c.head_dim = 8;
  c.vocab = 90, c.max_positions = 64;
  return c;
}

constexpr std::int64_t kRotatedBytes = 1 << 20;

std::unique_ptr<Device> cpu() { return turbo::open_device({.kind = "cpu", .threads = 1}); }

TEST(DecodeBenchmark, CountsTheBytesThatAStepReads) {
  const FamilyRegistry families = builtin_families();
  ModelConfig c = tiny();
  // The matrices of a layer are qkv, out, gate and up, and down, with two norms. The final norm and the
  // output head follow.
  const double layer = 64 * 32 + 32 * 32 + 96 * 32 + 32 * 48 + 2 * 32;
  const double read = 2 * layer + 32 + 90 * 32;
  const double keys = 2 * 2 * 2 * 8;  // keys and values of a token, in both layers
  EXPECT_EQ(bytes_of_decoding(c, families, DType::kF32, 1, 10), 4 * (read + 32 + 10 * keys));
  EXPECT_EQ(bytes_of_decoding(c, families, DType::kBF16, 3, 10), 2 * (read + 3 * 32 + 3 * 10 * keys));
  c.tied_embeddings = true;  // the embedding is also the output head
  EXPECT_EQ(bytes_of_decoding(c, families, DType::kF32, 1, 10), 4 * (read + 10 * keys));
  c.at(1).local = true;
  c.attention.window = 4;
  EXPECT_EQ(bytes_of_decoding(c, families, DType::kF32, 1, 10), 4 * (read + (10 + 4) * keys / 2));
}

TEST(DecodeBenchmark, TimesEveryBatch) {
  std::vector<std::string> done;
  const BenchmarkReport report =
      benchmark_decoding(cpu(), tiny(), builtin_families(),
                         {.batches = {1, 5},
                          .context = 20,
                          .tokens = 6,
                          .warmup = 1,
                          .copy_seconds = 0.001,
                          .rotated_bytes = kRotatedBytes,
                          .progress = [&](std::string_view what, std::int64_t of, std::int64_t) {
                            if (of == 0) done.emplace_back(what);
                          }});
  EXPECT_EQ(report.suite, "decode");
  EXPECT_EQ(report.dtype, "bf16");
  EXPECT_GT(report.copy_ceiling, 0);
  ASSERT_EQ(report.results.size(), 2U);
  EXPECT_EQ(report.results[0].name, "batch 1, context 20");
  EXPECT_EQ(report.results[1].name, "batch 5, context 20");
  EXPECT_EQ(report.results[1].tokens, 5);
  EXPECT_EQ(report.results[1].timing.samples, 6);
  EXPECT_EQ(report.results[1].bytes, bytes_of_decoding(tiny(), builtin_families(), DType::kBF16, 5, 24));
  EXPECT_THAT(report.notes, testing::Contains(testing::HasSubstr("batch 5: prompts read at ")));
  EXPECT_EQ(done, (std::vector<std::string>{"the memory's rate", "weights", "batch 1: reading the prompts",
                                            "batch 1", "batch 5: reading the prompts", "batch 5"}));
}

// A step reads the weights once, and the adapters of each model that has a text.
TEST(DecodeBenchmark, TimesABatchOfSeveralAdapters) {
  ModelConfig adapted = tiny();
  adapted.lora = {.dim = 3, .alpha = 6, .modules = {"linear_qkv", "linear_fc2"}};
  const double adapters = 2 * 2 * (3 * (32 + 64) + 3 * (48 + 32));  // bytes of both layers
  DecodeBenchmarkOptions options{
      .batches = {2, 7}, .context = 20, .tokens = 3, .warmup = 1, .adapters = 4, .copy_seconds = 0.001};
  const BenchmarkReport report = benchmark_decoding(cpu(), adapted, builtin_families(), options);
  ASSERT_EQ(report.results.size(), 2U);
  EXPECT_EQ(report.results[0].name, "batch 2 of 2 adapters, context 20");
  EXPECT_EQ(report.results[1].name, "batch 7 of 4 adapters, context 20");
  for (const std::size_t i : {0U, 1U}) {
    const std::int64_t texts = options.batches[i], length = 20 + 1 + 2;
    EXPECT_EQ(report.results[i].bytes,
              bytes_of_decoding(tiny(), builtin_families(), DType::kBF16, texts, length) +
                  static_cast<double>(std::min<std::int64_t>(texts, 4)) * adapters);
  }
  const auto refused = [&](const ModelConfig& config) {
    try {
      benchmark_decoding(cpu(), config, builtin_families(), options);
    } catch (const Error& error) {
      return error.render();
    }
    return std::string();
  };
  EXPECT_THAT(refused(tiny()), testing::HasSubstr("--adapters needs adapters"));
  adapted.lora.by_matrix.saved = {"model.norm"};
  EXPECT_THAT(refused(adapted), testing::HasSubstr("cannot be in one batch"));
  options.adapters = 0;
  EXPECT_THAT(refused(tiny()), testing::HasSubstr("the number of adapters is 0; it must be from 1"));
}

TEST(DecodeBenchmark, ComparesReadingOfPromptsWithItsProductsAndAttention) {
  const BenchmarkReport report = benchmark_decoding(cpu(), tiny(), builtin_families(),
                                                    {.batches = {2},
                                                     .context = 20,
                                                     .tokens = 3,
                                                     .warmup = 1,
                                                     .pass_tokens = 16,
                                                     .copy_seconds = 0.001,
                                                     .rotated_bytes = kRotatedBytes,
                                                     .ceiling_seconds = 0.001});
  ASSERT_EQ(report.results.size(), 2U);
  EXPECT_EQ(report.results[0].composed_seconds, 0);
  EXPECT_EQ(report.results[1].name, "batch 2, reading 20");
  EXPECT_EQ(report.results[1].tokens, 40);
  EXPECT_GE(report.results[1].timing.samples, 2);
  EXPECT_GT(report.results[1].composed_seconds, 0);
  EXPECT_THAT(report.notes, testing::Contains(testing::HasSubstr("batch 2: prompts read again at ")));
}

TEST(DecodeBenchmark, RefusesUnsupportedModels) {
  const auto run = [](DecodeBenchmarkOptions options) {
    return benchmark_decoding(cpu(), tiny(), builtin_families(), options);
  };
  EXPECT_THROW(run({.batches = {}}), Error);
  EXPECT_THROW(run({.batches = {0}}), Error);
  EXPECT_THROW(run({.batches = {1}, .context = 0}), Error);
  EXPECT_THROW(run({.batches = {1}, .context = 10, .tokens = 0}), Error);
  EXPECT_THROW(run({.batches = {1}, .context = 10, .tokens = 10, .warmup = -1}), Error);
  EXPECT_THROW(run({.batches = {1}, .context = 50, .tokens = 20}), Error);
  EXPECT_THROW(run({.batches = {1}, .context = 10, .pass_tokens = 0}), Error);
  // The prompt has one token, and the cache before it is empty.
  EXPECT_EQ(run({.batches = {2},
                 .context = 1,
                 .tokens = 1,
                 .warmup = 0,
                 .copy_seconds = 0.001,
                 .rotated_bytes = kRotatedBytes})
                .results.size(),
            1U);
}

}  // namespace
}  // namespace primus
