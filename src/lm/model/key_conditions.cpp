#include "lm/model/key_conditions.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <string_view>

#include "config/validate.h"

namespace primus {
namespace {

// One kind of layer: whether a model has it, what asks for it, and the keys that it alone reads.
struct Condition {
  bool (*met)(const ModelConfig&);
  std::string_view asked_for;
  std::span<const std::string_view> keys;
};

bool has_latents(const ModelConfig& c) { return c.attention.latent.kv_rank > 0; }
bool pools_latents(const ModelConfig& c) { return c.attention.compressed(); }

constexpr auto kAnyLatent = std::to_array<std::string_view>({"q_lora_rank", "qk_pos_emb_head_dim"});
constexpr auto kLatent = std::to_array<std::string_view>(
    {"kv_lora_rank", "qk_head_dim", "v_head_dim", "mla_use_nope", "mla_use_output_gate"});
constexpr auto kPooled =
    std::to_array<std::string_view>({"compress_rope_theta", "attn_sliding_window", "attn_sink",
                                     "hybrid_attention_enabled", "o_groups", "o_lora_rank", "swiglu_limit"});
constexpr auto kStreams = std::to_array<std::string_view>({"hc_sinkhorn_iters", "hc_eps"});
constexpr auto kHeads =
    std::to_array<std::string_view>({"group_query_attention", "num_query_groups", "kv_channels"});

const auto kConditions = std::to_array<Condition>({
    {[](const ModelConfig& c) { return has_latents(c) || pools_latents(c); },
     "with multi_latent_attention or compress_ratios", kAnyLatent},
    {has_latents, "with multi_latent_attention", kLatent},
    {pools_latents, "with compress_ratios", kPooled},
    {[](const ModelConfig& c) { return c.hyper.streams > 1; }, "with hc_mult", kStreams},
    {[](const ModelConfig& c) { return !has_latents(c); },
     "without multi_latent_attention, whose heads have widths of their own", kHeads},
});

}  // namespace

void warn_of_unread_keys(const config::Experiment& experiment, const ModelConfig& model,
                         std::vector<std::string>& warnings) {
  for (const Condition& condition : kConditions) {
    if (condition.met(model)) continue;
    for (const std::string_view key : condition.keys) {
      if (!config::is_said(experiment, key)) continue;
      warnings.push_back(fmt::format("{}: {} has an effect only {}", experiment.provenance_of(key).describe(),
                                     experiment.name_of(key), condition.asked_for));
    }
  }
}

}  // namespace primus
