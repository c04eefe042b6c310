// The other suites: which cases they have and what those count, on small sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "bench/checkpoint_benchmark.h"
#include "bench/memory_benchmark.h"
#include "bench/model_shapes.h"
#include "device/guard_device.h"
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

TEST(MemoryBenchmark, CountsWhatIsReadAndWritten) {
  const auto device = turbo::open_device({.kind = "cpu", .threads = 1});
  const BenchmarkReport report = benchmark_memory(*device, {.sizes = {1 << 20, 5 << 20}, .seconds = 0.001});
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
  EXPECT_THROW(benchmark_memory(*device, {.sizes = {0}}), Error);
  EXPECT_THROW(benchmark_memory(*device, {.sizes = {1024}, .seconds = 0}), Error);
}

// No suite may look into device memory.
TEST(MemoryBenchmark, RunsOnADeviceWhoseMemoryFaults) {
  test::GuardDevice device(1, turbo::cpu_kernel_table());
  const BenchmarkReport report = benchmark_memory(device, {.sizes = {64 << 20}, .seconds = 0.001});
  EXPECT_EQ(report.results.size(), 9U);
}

ModelConfig dense() {
  ModelConfig c;
  c.hidden = 64, c.ffn = 160, c.heads = 8, c.kv_heads = 2, c.head_dim = 8, c.vocab = 1000;
  return c;
}

std::string products(const ModelConfig& c) {
  std::string text;
  for (const ModelProduct& p : products_of(c, 10))
    text += p.what + " " + std::to_string(p.rows) + "x" + std::to_string(p.out) + "x" + std::to_string(p.in) +
            (p.experts > 0 ? " of " + std::to_string(p.experts) : "") + "; ";
  return text;
}

TEST(ModelShapes, OfADenseModel) {
  EXPECT_EQ(
      products(dense()),
      "qkv 10x96x64; attention out 10x64x64; gate and up 10x320x64; down 10x64x160; vocabulary 10x1000x64; ");
}

TEST(ModelShapes, OfLatentAttentionAndExperts) {
  ModelConfig c = dense();
  c.attention.latent = {.q_rank = 24, .kv_rank = 16, .nope_dim = 8, .rope_dim = 4, .value_dim = 6};
  c.moe.experts = 32, c.moe.ffn = 40, c.moe.shared_ffn = 80, c.moe.router.top_k = 3;
  const std::string routed =
      "q down 10x24x64; q up 10x96x24; kv down 10x20x64; kv up 10x112x16; attention out 10x64x48; "
      "experts' gate and up 30x80x64 of 32; experts' down 30x64x40 of 32; "
      "shared expert's gate and up 10x160x64; shared expert's down 10x64x80; vocabulary 10x1000x64; ";
  EXPECT_EQ(products(c), routed);
  c.attention.latent.q_rank = 0;
  c.moe.shared_ffn = 0;
  c.moe.dense_layers = {0};
  EXPECT_EQ(products(c),
            "q 10x96x64; kv down 10x20x64; kv up 10x112x16; attention out 10x64x48; gate and up 10x320x64; "
            "down 10x64x160; experts' gate and up 30x80x64 of 32; experts' down 30x64x40 of 32; "
            "vocabulary 10x1000x64; ");
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
  EXPECT_TRUE(Env::posix().list(folder.path()).empty());
}

TEST(CheckpointBenchmark, NoRoomIsSaidBeforeAnythingIsWritten) {
  const test::TemporaryFolder folder;
  try {
    benchmark_checkpoint({.folder = folder.path(), .bytes = std::uint64_t{1} << 60});
    FAIL() << "a checkpoint of an exbibyte was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("two checkpoints of"));
  }
  EXPECT_TRUE(Env::posix().list(folder.path()).empty());
}

}  // namespace
}  // namespace primus
