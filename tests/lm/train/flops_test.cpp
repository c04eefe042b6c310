// Compares training_flops with the products that a step of each family computes, kernel by kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/files/file.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"
#include "lm/train/step/session.h"
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

  // The products of attention are not Gemms, so they are subtracted. Each visible key counts once, except
  // that a query's own key counts half.
  const LatentConfig& latent = c.attention.latent;
  const std::int64_t width = c.head_dim + (latent.kv_rank > 0 ? latent.value_dim : c.head_dim);
  double keys = 0;
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    if (!c.attends(layer)) continue;
    const AttentionConfig& a = c.attention;
    for (std::int64_t t = 0; t < kLength; ++t) {
      std::int64_t before = t;
      if (c.spec(layer).local && a.window > 0) before = std::min(before, a.window);
      if (c.spec(layer).local && a.chunk > 0) before = t % a.chunk;
      const std::int64_t maximum = a.indexer.top_k;
      const bool cut =
          (c.spec(layer).local && a.window > 0 && t >= a.window) || (maximum > 0 && t >= maximum);
      if (maximum > 0) before = std::min(before, maximum);
      keys += static_cast<double>(before) + (cut ? 0 : 0.5);
    }
  }
  double products = training_flops(c, 6, kLength) - 6 * 6 * static_cast<double>(c.heads * width) * keys;
  const double h = static_cast<double>(c.hidden);
  // By convention, training_flops omits routers and recomputation (latents are projected again in the
  // backward pass), so these products are added.
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    if (c.routed(layer)) {
      products += tokens * 6 * h * static_cast<double>(c.moe.experts + (c.moe.shared_gate ? 1 : 0));
    }
    // Products of tokens with a state or with earlier tokens are not Gemms, either.
    if (const LinearAttentionConfig& l = c.linear; c.has_state(layer)) {
      products -=
          tokens * 6 *
          static_cast<double>(4 * l.values() * l.key_dim + l.conv_width * (2 * l.keys() + l.values()));
    }
    if (latent.kv_rank == 0 || !c.attends(layer)) continue;
    if (const IndexerConfig& indexer = c.attention.indexer; indexer.heads > 0) {
      // Products with latents and the scores of the indexer are not Gemms. A token's own key counts half.
      products -= tokens * (6 * static_cast<double>(latent.kv_rank * c.heads) *
                                static_cast<double>(latent.nope_dim + latent.value_dim) +
                            static_cast<double>(indexer.heads * indexer.head_dim * kLength));
      continue;
    }
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
                                           "deepseek_v2", "deepseek_v3", "gpt_oss", "llama4", "lfm2",
                                           "lfm2_moe", "qwen3_next", "qwen3_5_moe", "qwen3_5", "deepseek_v32",
                                           "glm_moe_dsa", "kimi_linear", "kimi_k3", "mistral", "ministral",
                                           "phi3", "smollm3", "olmo2", "glm4", "glm4_moe", "granite",
                                           "granitemoe", "granitemoeshared", "gemma2", "gemma3", "ministral3",
                                           "gated_deltanet", "gated_deltanet_latent", "kda", "qwen3_vl_moe"));

}  // namespace
}  // namespace primus
