// derive() computes trainer settings that follow from other settings.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "config/stages.h"
#include "config/trainer_config.h"

namespace primus::config {

void derive(TrainerConfig& config) {
  TrainerConfig& c = config;
  const auto fill = [](auto& field, auto value) {
    if (field == 0) field = value;
  };
  fill(c.max_position_embeddings, c.seq_length);
  fill(c.num_query_groups, c.num_attention_heads);
  if (c.num_attention_heads > 0) fill(c.kv_channels, c.hidden_size / c.num_attention_heads);
  if (c.hidden_size > 0) fill(c.ffn_hidden_size, std::max<std::int64_t>(64, c.hidden_size * 8 / 3 / 64 * 64));
  if (c.train_tokens) {
    const std::int64_t per_step = c.global_batch_size * c.seq_length;
    c.train_iters = *c.train_tokens / per_step + (*c.train_tokens % per_step != 0);
  }
  fill(c.lr_decay_iters, c.train_iters);
  if (c.lr_warmup_fraction) {
    c.lr_warmup_iters = std::llround(*c.lr_warmup_fraction * static_cast<double>(c.lr_decay_iters));
  }
  if (!c.start_weight_decay) c.start_weight_decay = c.weight_decay;
  if (!c.end_weight_decay) c.end_weight_decay = c.weight_decay;
  // stage_of() is not usable here, because the value of the key may be invalid.
  for (const Stage& stage : stages()) {
    if (c.stage != stage.name) continue;
    if (!c.beta) c.beta = stage.default_beta;
    if (c.loss_type.empty() && !stage.default_loss_type.empty())
      c.loss_type = {std::string(stage.default_loss_type)};
  }
  if (c.recompute_granularity == "full" && c.recompute_layer_ids.empty()) {
    if (!c.recompute_method) c.recompute_method = "uniform";
    if (*c.recompute_method == "uniform" && !c.recompute_num_layers) c.recompute_num_layers = 1;
  }
  // Megatron-LM's defaults for latent attention: rope type yarn, and a factor of 1, which means no scaling
  // (arguments.py; MLATransformerConfig).
  const bool latents = c.multi_latent_attention || !c.compress_ratios.empty();
  if (latents) {
    fill(c.rotary_scaling_factor, c.rope_scaling_factor > 0 ? c.rope_scaling_factor : 1.0);
  } else {
    fill(c.rope_scaling_factor, 8.0);
  }
  const double factor = latents ? c.rotary_scaling_factor : c.rope_scaling_factor;
  const bool latent_yarn = c.multi_latent_attention && !c.rope_type && factor > 1;
  const bool yarn = c.rope_type == "yarn" || c.position_embedding_type == "yarn" || latent_yarn;
  if (c.rope_scaling_type.empty()) {
    c.rope_scaling_type = c.use_rope_scaling ? "llama3" : yarn ? "yarn" : "none";
  }
  if (c.multi_latent_attention && c.mscale_all_dim && !c.mscale) c.mscale = 1.0;
  if (c.original_max_position_embeddings == 0) {
    const double stretched = static_cast<double>(c.max_position_embeddings) / factor;
    const bool latent = c.multi_latent_attention && c.rope_scaling_type == "yarn";
    c.original_max_position_embeddings = c.rope_scaling_type == "llama3" ? 8192
                                         : latent                        ? 4096
                                         : c.rope_scaling_type == "none"
                                             ? c.max_position_embeddings
                                             : std::max<std::int64_t>(1, std::llround(stretched));
  }
}

}  // namespace primus::config
