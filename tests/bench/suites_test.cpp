// Tests of the other benchmark suites with small sizes: their cases, bytes and FLOPs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "base/terminal/terminal.h"
#include "bench/attention_shapes.h"
#include "bench/benchmark_entry.h"
#include "bench/checkpoint_benchmark.h"
#include "bench/model_shapes.h"
#include "bench/operator_benchmark.h"
#include "device/guard_device.h"
#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/devices/devices.h"

namespace primus {
namespace {

using ::testing::HasSubstr;

const BenchmarkResult* find(const BenchmarkReport& report, const std::string& name) {
  for (const BenchmarkResult& result : report.results)
    if (result.name == name) return &result;
  return nullptr;
}

// Returns a memory benchmark that is prepared for buffers of `sizes`.
std::unique_ptr<DeviceBenchmark> memory_benchmark(const char* sizes) {
  std::unique_ptr<DeviceBenchmark> benchmark(
      dynamic_cast<DeviceBenchmark*>(benchmark_named("memory").make().release()));
  *std::get<std::string*>(benchmark->options().at(0).target) = sizes;
  benchmark->prepare();
  return benchmark;
}

TEST(MemoryBenchmark, CountsBytesReadAndWritten) {
  const auto device = turbo::open_device({.kind = "cpu", .threads = 1});
  const BenchmarkReport report =
      memory_benchmark("1M,5M")->measure_on(*device, {.seconds = 0.001, .rotated_bytes = 12 << 20});
  EXPECT_EQ(report.results.size(), 2 * 9U);
  const double mib = 1 << 20;
  for (const auto& [name, bytes] : {std::pair("read (sum), 1.00 MiB", mib),
                                    {"write (fill), 1.00 MiB", mib},
                                    {"copy, 1.00 MiB", 2 * mib},
                                    {"read two, write one (add), 5.00 MiB", 15 * mib},
                                    {"host to device, pinned, 5.00 MiB", 5 * mib},
                                    {"device to host, pageable, 1.00 MiB", mib}}) {
    const BenchmarkResult* const result = find(report, name);
    ASSERT_TRUE(result) << name;
    EXPECT_EQ(result->bytes, bytes) << name;
    EXPECT_GE(result->timing.samples, 5);
  }
  EXPECT_THROW(memory_benchmark("0"), Error);
  EXPECT_THROW(memory_benchmark("1K")->measure_on(*device, {.seconds = 0}), Error);
}

// Suites must not access device memory from the host.
TEST(MemoryBenchmark, RunsOnADeviceWhoseMemoryFaults) {
  test::GuardDevice device(1, turbo::cpu_kernel_table());
  const BenchmarkReport report =
      memory_benchmark("8M")->measure_on(device, {.seconds = 0.001, .rotated_bytes = 16 << 20});
  EXPECT_EQ(report.results.size(), 9U);
}

ModelConfig dense() {
  ModelConfig c;
  c.layers = 1, c.hidden = 64, c.ffn = 160, c.heads = 8, c.kv_heads = 2, c.head_dim = 8, c.vocab = 1000;
  return c;
}

std::string products(const ModelConfig& c) {
  std::string text;
  for (const ModelProduct& p : products_of(c, 10))
    text += p.what + " " + std::to_string(p.rows) + "x" + std::to_string(p.out) + "x" + std::to_string(p.in) +
            (p.experts > 0 ? " of " + std::to_string(p.experts) : "") + "; ";
  return text;
}

TEST(ModelShapes, ListADenseModelsProducts) {
  EXPECT_EQ(
      products(dense()),
      "qkv 10x96x64; attention out 10x64x64; gate and up 10x320x64; down 10x64x160; vocabulary 10x1000x64; ");
}

TEST(ModelShapes, ListProductsOfLatentAttentionAndExperts) {
  ModelConfig c = dense();
  c.set_layers(&LayerSpec::attention, &kLatentAttention);
  c.attention.latent = {.q_rank = 24, .kv_rank = 16, .nope_dim = 8, .rope_dim = 4, .value_dim = 6};
  c.set_layers(&LayerSpec::feed_forward, &kMixture);
  c.moe.experts = 32, c.moe.ffn = 40, c.moe.shared_ffn = 80, c.moe.router.top_k = 3;
  const std::string routed =
      "q down 10x24x64; q up 10x96x24; kv down 10x20x64; kv up 10x112x16; attention out 10x64x48; "
      "experts' gate and up 30x80x64 of 32; experts' down 30x64x40 of 32; "
      "shared expert's gate and up 10x160x64; shared expert's down 10x64x80; vocabulary 10x1000x64; ";
  EXPECT_EQ(products(c), routed);
  c.attention.latent.q_rank = 0;
  c.moe.shared_ffn = 0;
  c.layers = 2, c.at(0).feed_forward = &kDenseFeedForward;
  EXPECT_EQ(products(c),
            "q 10x96x64; kv down 10x20x64; kv up 10x112x16; attention out 10x64x48; gate and up 10x320x64; "
            "down 10x64x160; experts' gate and up 30x80x64 of 32; experts' down 30x64x40 of 32; "
            "vocabulary 10x1000x64; ");
}

TEST(ModelShapes, CountLayers) {
  ModelConfig c = dense();
  c.layers = 6;
  c.set_layers(&LayerSpec::feed_forward, &kMixture);
  c.set_layers({0, 1}, &LayerSpec::feed_forward, &kDenseFeedForward);
  c.moe.experts = 8, c.moe.ffn = 40, c.moe.shared_ffn = 40;
  c.mtp.enabled = true, c.mtp.layers = 2;
  std::map<std::string, std::int64_t> times;
  for (const ModelProduct& p : products_of(c, 10)) times[p.what] = p.times;
  // Two modules of multi-token prediction have a block like the last layer, with experts.
  const std::map<std::string, std::int64_t> expected{{"qkv", 8},
                                                     {"attention out", 8},
                                                     {"gate and up", 2},
                                                     {"down", 2},
                                                     {"experts' gate and up", 6},
                                                     {"experts' down", 6},
                                                     {"shared expert's gate and up", 6},
                                                     {"shared expert's down", 6},
                                                     {"next token's input", 2},
                                                     {"vocabulary", 3}};
  EXPECT_EQ(times, expected);
}

// The FLOPs of all products and attentions are those of a training step.
TEST(ModelShapes, AddUpToTheFlopsOfTraining) {
  constexpr std::int64_t kBatch = 2, kLength = 64;
  ModelConfig plain = dense();
  plain.layers = 5;
  ModelConfig mixed = plain;
  mixed.set_layers(&LayerSpec::feed_forward, &kMixture);
  mixed.moe.experts = 8, mixed.moe.ffn = 40, mixed.moe.shared_ffn = 24, mixed.moe.router.top_k = 3;
  mixed.at(0).feed_forward = &kDenseFeedForward;
  mixed.mtp.enabled = true, mixed.mtp.layers = 1;
  ModelConfig latent = mixed;
  latent.head_dim = 12;
  latent.set_layers(&LayerSpec::attention, &kLatentAttention);
  latent.attention.latent = {.q_rank = 24, .kv_rank = 16, .nope_dim = 8, .rope_dim = 4, .value_dim = 6};
  ModelConfig chunks = plain;
  chunks.set_layers({0, 1, 3}, &LayerSpec::local, true);
  chunks.attention.chunk = 24;
  for (const ModelConfig& c : {plain, mixed, latent, chunks}) {
    double flops = 0;
    for (const ModelProduct& p : products_of(c, kBatch * kLength))
      flops += 6.0 * static_cast<double>(p.times * p.rows * p.out * p.in);
    // Attention has two products forward, and two more for the gradient of each of their operands. A causal
    // mask needs half of the keys.
    for (const LayersAttention& a : attentions_of(c, kBatch, kLength))
      flops += 3.0 * static_cast<double>(a.times * a.shape.batch * a.shape.sequence * a.shape.sequence *
                                         a.shape.heads * (a.shape.head_dim + a.shape.value_dim));
    EXPECT_NEAR(flops / training_flops(c, kBatch, kLength), 1, 1e-12);
  }
}

TEST(ModelShapes, WindowsAreKept) {
  ModelConfig c = dense();
  c.layers = 4, c.attention.window = 16;
  c.set_layers({0, 2}, &LayerSpec::local, true);
  const std::vector<LayersAttention> all = attentions_of(c, 3, 64);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].shape.window, 0);
  EXPECT_EQ(all[0].times, 2);
  EXPECT_EQ(all[1].shape.window, 16);
  EXPECT_EQ(all[1].times, 2);
  EXPECT_EQ(all[1].shape.batch, 3);
  // A window that covers the whole sequence is not counted as a window.
  ASSERT_EQ(attentions_of(c, 3, 16).size(), 1U);
  EXPECT_EQ(attentions_of(c, 3, 16)[0].times, 4);
}

TEST(ModelShapes, SinksAreKept) {
  ModelConfig c = dense();
  EXPECT_FALSE(attentions_of(c, 1, 64)[0].shape.sinks);
  c.attention.sinks = true;
  EXPECT_TRUE(attentions_of(c, 1, 64)[0].shape.sinks);
}

TEST(ModelShapes, DeltaRulesOfLinearAttention) {
  ModelConfig c = dense();
  c.layers = 4;
  EXPECT_TRUE(delta_rules_of(c, 2, 64).empty());
  c.set_layers({0, 1, 2}, &LayerSpec::attention, &kGatedDeltaNet);
  c.linear.key_heads = 2, c.linear.value_heads = 4, c.linear.key_dim = 16, c.linear.value_dim = 8;
  std::vector<LayersDeltaRule> all = delta_rules_of(c, 2, 64);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].times, 3);
  EXPECT_EQ(all[0].shape.rows(), 128);
  EXPECT_EQ(all[0].shape.width(), 2 * 32 + 32);
  EXPECT_FALSE(all[0].shape.channel_gates);
  EXPECT_EQ(attentions_of(c, 2, 64)[0].times, 1);
  c.set_layers({0, 1, 2}, &LayerSpec::attention, &kDeltaAttention);
  EXPECT_TRUE(delta_rules_of(c, 2, 64)[0].shape.channel_gates);
}

TEST(OperatorBenchmark, TimesDeltaRules) {
  const turbo::DeltaRuleShape shape{.batch = 1,
                                    .sequence = 70,
                                    .key_heads = 1,
                                    .value_heads = 2,
                                    .key_dim = 16,
                                    .value_dim = 8,
                                    .channel_gates = true,
                                    .normalise = true,
                                    .scale = 0.25F};
  const std::unique_ptr<Device> device = turbo::open_device({.kind = "cpu", .threads = 1});
  OperatorBenchmarkOptions options{.seconds = 0.001, .rotated_bytes = 1};
  EXPECT_EQ(benchmark_delta_rule(*device, {shape}, options).results.size(), 2U);
  options.forward_only = true;
  EXPECT_EQ(benchmark_delta_rule(*device, {shape}, options).results.size(), 1U);
  EXPECT_EQ(
      benchmark_attention(*device, {{.sequence = 16, .heads = 2, .kv_heads = 1, .sinks = true}}, options)
          .results.size(),
      1U);
}

TEST(ModelShapes, AttentionOfALayer) {
  const AttentionCase plain = attention_of(dense(), "mine", 64);
  EXPECT_EQ(plain.model, "mine");
  EXPECT_EQ(plain.sequence, 64);
  EXPECT_EQ(plain.heads, 8);
  EXPECT_EQ(plain.kv_heads, 2);
  EXPECT_EQ(plain.head_dim, 8);
  EXPECT_EQ(plain.value_dim, 8);
  ModelConfig c = dense();
  c.set_layers(&LayerSpec::attention, &kLatentAttention);
  c.attention.latent = {.q_rank = 24, .kv_rank = 16, .nope_dim = 8, .rope_dim = 4, .value_dim = 6};
  const AttentionCase latent = attention_of(c, "mine", 64);
  EXPECT_EQ(latent.kv_heads, 8);
  EXPECT_EQ(latent.head_dim, 12);
  EXPECT_EQ(latent.value_dim, 6);
}

constexpr const char* kShape =
    R"({"model": "A", "seqlen_q": 32, "seqlen_kv": 32, "num_head_q": 4, "num_head_kv": 2,
        "head_dim_qk": 24, "head_dim_v": 16, "causal": false})";

TEST(AttentionShapes, FilesListShapes) {
  std::vector<LeftOutShape> left_out;
  const auto shapes = read_attention_shapes(
      std::string("[") + kShape +
          R"(, {"seqlen_q": 1, "seqlen_kv": 32, "num_head_q": 4, "num_head_kv": 2, "head_dim_qk": 8,
               "head_dim_v": 8}])",
      "shapes.json", left_out);
  ASSERT_EQ(shapes.size(), 1U);
  EXPECT_EQ(shapes[0].model, "A");
  EXPECT_EQ(shapes[0].head_dim, 24);
  EXPECT_EQ(shapes[0].value_dim, 16);
  EXPECT_FALSE(shapes[0].causal);
  ASSERT_EQ(left_out.size(), 1U);  // one query with 32 keys
  EXPECT_THAT(left_out[0].why, HasSubstr("was skipped"));
}

TEST(AttentionShapes, InvalidShapesAreRefusedWithTheirLocation) {
  std::vector<LeftOutShape> left_out;
  for (const auto& [text, words] :
       {std::pair("{}", "shapes.json:1:1"), std::pair("[1]", "each of the shapes is a number"),
        std::pair(R"([{"seqlen_q": 0}])", "'seqlen_q' must be from 1"),
        std::pair(R"([{"seqlen_q": "1"}])", "'seqlen_q' is a string"),
        std::pair(R"([{"seqlen": 1}])", "'seqlen' is not a key of a shape"),
        std::pair(R"([{"model": "A"}])", "a shape lacks 'seqlen_q'"),
        std::pair(R"([{"model": "A\u001b[31m"}])",
                  "shapes.json:1:25 a model's name must not contain control characters"),
        std::pair(R"([{"seqlen_q": 8, "seqlen_kv": 8, "num_head_q": 4, "num_head_kv": 3, "head_dim_qk": 8,
                      "head_dim_v": 8}])",
                  "num_head_q 4 is not a multiple of num_head_kv 3"),
        std::pair("[", "shapes.json:1:2")}) {
    try {
      read_attention_shapes(text, "shapes.json", left_out);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.location() + " " + error.what(), HasSubstr(words)) << text;
      EXPECT_EQ(std::string(error.what()).find("broken JSON") != std::string::npos,
                std::string_view(text) == "[")
          << error.what();
    }
  }
}

TEST(AttentionBenchmark, ValuesMayBeNarrowerThanKeys) {
  const auto device = turbo::open_device({.kind = "cpu", .threads = 1});
  const AttentionCase which{.model = "A",
                            .batch = 2,
                            .sequence = 16,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 24,
                            .value_dim = 8,
                            .causal = false};
  const BenchmarkReport report = benchmark_attention(
      *device, {which}, {.dtype = DType::kF32, .seconds = 0.001, .rotated_bytes = 1 << 20}, "own, ");
  ASSERT_EQ(report.results.size(), 2U);
  EXPECT_EQ(report.results[0].name, "own, A, forward 2x16 4/2 heads of 24 and 8");
  EXPECT_EQ(report.results[0].flops, 2.0 * 2 * 4 * 16 * 16 * (24 + 8));
  // The bytes of q, k, v and output, and of one log-sum-exp per query and head.
  EXPECT_EQ(report.results[0].bytes, 4.0 * 2 * 16 * (4 * 24 + 2 * 24 + 2 * 8 + 4 * 8 + 4));
}

TEST(CheckpointBenchmark, SavesLoadsAndLeavesNothing) {
  const test::TemporaryFolder folder;
  const BenchmarkReport report = benchmark_checkpoint(
      {.folder = folder.path(), .bytes = 1 << 20, .shard_bytes = 300'000, .repetitions = 2});
  ASSERT_EQ(report.results.size(), 3U);
  for (const BenchmarkResult& result : report.results) {
    EXPECT_EQ(result.timing.samples, 2);
    EXPECT_GT(result.bytes, 0.9 * (1 << 20));
    EXPECT_LE(result.bytes, 1 << 20);
  }
  // The share of direct writes depends on the file system, and refers to the written bytes.
  const std::string size = human_bytes(report.results[0].bytes);
  EXPECT_THAT(report.notes,
              ::testing::Contains(HasSubstr("of the " + size + " of a save bypassed the page cache")));
  EXPECT_TRUE(Env::posix().list(folder.path()).empty());
}

TEST(CheckpointBenchmark, AFullDiskIsReportedBeforeAnythingIsWritten) {
  const test::TemporaryFolder folder;
  try {
    benchmark_checkpoint({.folder = folder.path(), .bytes = std::uint64_t{1} << 60});
    FAIL() << "a checkpoint of an exbibyte was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("two checkpoints of"));
  }
  EXPECT_TRUE(Env::posix().list(folder.path()).empty());
}

}  // namespace
}  // namespace primus
