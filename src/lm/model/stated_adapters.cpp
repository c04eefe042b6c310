#include "lm/model/stated_adapters.h"

#include <fmt/format.h>

#include "config/lora_settings.h"
#include "config/trainer_config.h"

namespace primus {

void set_adapters(const config::Experiment& experiment, ModelConfig& model,
                  std::vector<std::string>* warnings) {
  const config::Value* const map = experiment.settings.find("lora");
  if (!map || !map->is_map()) return;
  const config::LoraSettings lora = config::read_lora(*map);
  if (!lora.enabled) return;
  model.lora = {.dim = lora.dim,
                .alpha = lora.alpha,
                .kaiming = lora.a_init == "kaiming",
                .modules = lora.target_modules,
                .training = {.dropout = lora.dropout, .drops_after = lora.dropout_position == "post"}};
  if (warnings && lora.dropout == 0 && lora.dropout_position != config::LoraSettings().dropout_position) {
    warnings->push_back(fmt::format("{}: lora.dropout_position has an effect only with lora.dropout",
                                    experiment.provenance_of("lora").describe()));
  }
  const bool feed_forwards = model.lora.has("linear_fc1") || model.lora.has("linear_fc2");
  if (model.moe.experts > 0 && feed_forwards && lora.dropout > 0) {
    throw experiment.error_for(
        "lora", "lora.dropout does not support adapters of experts (linear_fc1, linear_fc2)",
        "set dropout of lora to 0.0, or its target_modules to [linear_qkv, linear_proj]");
  }
  if ((model.any_keeps(Keeps::kLatents) || model.any_keeps(Keeps::kPooled)) && model.lora.has("linear_qkv")) {
    if (model.lora.modules.size() == 1)
      throw experiment.error_for("lora",
                                 "lora names only linear_qkv, but latent attention has no such module",
                                 "name linear_proj in target_modules");
    if (warnings)
      warnings->push_back(
          fmt::format("{}: latent attention has no linear_qkv, so its queries, keys and values have no "
                      "adapters, as in AMD Primus",
                      experiment.provenance_of("lora").describe()));
  }
  // Requires an adapted layer. Otherwise nothing would be trained, and a step without a backward pass
  // computes no loss.
  bool attends = false;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) attends = attends || model.attends(layer);
  if (!feed_forwards && !attends) {
    throw experiment.error_for("lora",
                               !model.any_keeps(Keeps::kState)
                                   ? "lora names only attention modules, but every layer of this model is a "
                                     "short convolution (lfm_layer_types)"
                                   : "lora names only attention modules, but every layer of this model has "
                                     "linear attention (linear_attention_freq)",
                               "name linear_fc1 and linear_fc2 in target_modules");
  }
  // The biases that balance experts are frozen like the experts.
  model.moe.training.bias_update_rate = 0;
  model.moe.training.quantile_bins = 0;
  if (warnings && !experiment.trainer->load)
    warnings->push_back(fmt::format("{}: lora without load trains adapters of a model with random weights",
                                    experiment.provenance_of("lora").describe()));
}

std::string adapter_overrides(const LoraConfig& wanted, const LoraConfig& present) {
  if (!wanted) return "lora.enabled=false";
  const config::LoraSettings usual;
  LoraConfig from = present;
  if (!present) {
    from.dim = 0;  // differs from wanted.dim, so the result always contains lora.dim, which enables adapters
    from.alpha = usual.alpha;
    from.kaiming = usual.a_init == "kaiming";
    from.modules = usual.target_modules;
  }
  std::vector<std::string> words;
  if (wanted.dim != from.dim) words.push_back(fmt::format("lora.dim={}", wanted.dim));
  if (wanted.alpha != from.alpha) words.push_back(fmt::format("lora.alpha={}", wanted.alpha));
  if (wanted.kaiming != from.kaiming)
    words.push_back(fmt::format("lora.lora_A_init_method={}", wanted.kaiming ? "kaiming" : "xavier"));
  if (wanted.modules != from.modules)
    words.push_back(fmt::format("lora.target_modules='[{}]'", fmt::join(wanted.modules, ", ")));
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace primus
