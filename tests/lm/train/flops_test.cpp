// training_flops against what a step of each family really multiplies, kernel by kernel.
#include <gtest/gtest.h>

#include <string>

#include "base/file.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"
#include "lm/train/session.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus {
namespace {

class Flops : public ::testing::TestWithParam<const char*> {};

TEST_P(Flops, MatrixProductsAreWhatTheStepMultiplies) {
  constexpr std::int64_t kLength = 64;
  const Path file = Path(PRIMUS_SOURCE_DIR) / "tests" / "golden" / "models" / GetParam() / "config.json";
  const FamilyRegistry families = builtin_families();
  const ModelConfig c = read_model_config(read_file(file), file.string(), families);
  SessionSettings settings;
  settings.model = c;
  settings.step = {.micro_batch = 2, .sequence = kLength, .microbatches = 3};
  engine::Rank rank(turbo::make_cpu_device(1));
  turbo::Meter kernels = measure_session(rank, settings, families).kernels;
  const double tokens = 6 * static_cast<double>(kLength);

  // Attention grows with the length and is not a Gemm: two lengths tell it from the rest.
  const double at_one = training_flops(c, 1, kLength) / static_cast<double>(kLength);
  const double at_two = training_flops(c, 1, 2 * kLength) / static_cast<double>(2 * kLength);
  double products = tokens * (2 * at_one - at_two);
  const double h = static_cast<double>(c.hidden);
  // By convention routers do not count, nor what is computed again: latents are unfolded in the backward
  // pass.
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    if (c.moe.routed(layer)) products += tokens * 6 * h * static_cast<double>(c.moe.experts);
    const LatentConfig& latent = c.attention.latent;
    if (latent.kv_rank == 0) continue;
    const auto heads = static_cast<double>(c.heads);
    products += tokens * 2 * static_cast<double>(latent.kv_rank) * heads *
                static_cast<double>(latent.nope_dim + latent.value_dim);
    if (latent.q_rank > 0) {
      products += tokens * 2 * static_cast<double>(latent.q_rank) * heads *
                  static_cast<double>(latent.nope_dim + latent.rope_dim);
    }
  }
  const double measured =
      kernels[turbo::KernelId::kGemm].flops + kernels[turbo::KernelId::kGroupedGemm].flops;
  EXPECT_NEAR(measured / products, 1, 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Families, Flops,
                         ::testing::Values("llama", "llama31_tied", "qwen2", "qwen3", "qwen3_moe", "mixtral",
                                           "deepseek_v2", "deepseek_v3", "gpt_oss", "llama4"));

}  // namespace
}  // namespace primus
