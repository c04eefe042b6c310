// Makes a model from an experiment's settings. model_fields.def maps settings that are one field of the
// model; stated_parts.cpp handles the rest. Values that the family fixes come from its config.json: the
// settings are written as config.json and read back. So an experiment cannot describe a model that no
// checkpoint of the family could hold.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/experiment.h"
#include "config/trainer_config.h"
#include "lm/model/family.h"
#include "lm/model/key_conditions.h"
#include "lm/model/model_config.h"
#include "lm/model/model_fields.h"
#include "lm/model/stated_adapters.h"
#include "lm/model/stated_agreement.h"
#include "lm/model/stated_model.h"
#include "lm/model/stated_parts.h"

namespace primus {
namespace {

using turbo::RouterRule;

ModelConfig common(const StatedModel& stated, std::optional<std::int64_t> vocab) {
  const config::TrainerConfig& t = stated.t;
  const std::optional<std::int64_t> size = t.vocab_size ? t.vocab_size : vocab;
  if (!size) {
    throw invalid("the vocabulary size is unknown", "set vocab_size, or tokenizer_type and tokenizer_model");
  }
  ModelConfig c;
  stated.take({ModelPart::kModel, ModelPart::kAttention, ModelPart::kIndexer, ModelPart::kPooled,
               ModelPart::kConvolution},
              c);
  c.vocab = t.padded_vocab_size(*size);
  c.tied_embeddings = !t.untie_embeddings_and_output_weights;
  return c;
}

// Warns about settings that are accepted but have no effect on this model.
void warn_of_settings_without_effect(const StatedModel& stated, const ModelConfig& has) {
  if (!stated.warnings) return;
  warn_of_unread_keys(stated.experiment, has, *stated.warnings);
  if (has.moe.experts == 0 || !has.dense_layers().empty() || has.ffn == has.moe.ffn) return;
  const config::Provenance said = stated.experiment.provenance_of("ffn_hidden_size");
  if (said.layer < config::Layer::kOverrides) return;
  stated.warnings->push_back(fmt::format(
      "{}: ffn_hidden_size affects only blocks without experts, but every block has experts: their "
      "width is moe_ffn_hidden_size",
      said.describe()));
}

MoeConfig::Training training(const StatedModel& stated, const ModelConfig& c) {
  const config::TrainerConfig& t = stated.t;
  const double rate = t.moe_router_bias_update_rate;
  if (c.moe.experts > 0 && !c.moe.choice_bias && rate != 0 &&
      rate != config::TrainerConfig().moe_router_bias_update_rate) {
    throw stated.differs("moe_router_bias_update_rate", "no expert bias");
  }
  const bool quantiles = t.moe_router_bias_update_rule == "quantile";
  if (quantiles && c.moe.experts > 0 && !c.moe.choice_bias)
    throw stated.differs("moe_router_bias_update_rule", "no expert bias");
  if (quantiles && t.quantile_balancing_margin_min >= t.quantile_balancing_margin_max) {
    throw stated.experiment.error_for(
        stated.is_set("quantile_balancing_margin_max") ? "quantile_balancing_margin_max"
                                                       : "quantile_balancing_margin_min",
        fmt::format("quantile_balancing_margin_max is {}, but quantile_balancing_margin_min is {}",
                    t.quantile_balancing_margin_max, t.quantile_balancing_margin_min),
        "set quantile_balancing_margin_max to more");
  }
  const bool balanced = t.moe_router_load_balancing_type != "none";
  return {.balance_loss = balanced ? t.moe_aux_loss_coeff : 0,
          .balance_sequences = t.moe_router_load_balancing_type == "seq_aux_loss",
          .balance_step = t.moe_router_load_balancing_type == "global_aux_loss",
          .z_loss = t.moe_z_loss_coeff.value_or(0),
          .bias_update_rate = c.moe.choice_bias ? t.moe_router_bias_update_rate : 0,
          .quantile_bins = quantiles && c.moe.choice_bias ? t.quantile_balancing_num_bins : 0,
          .margin_low = t.quantile_balancing_margin_min,
          .margin_high = t.quantile_balancing_margin_max,
          .centred_bias = t.quantile_balancing_center_bias,
          .kept_bias = t.quantile_balancing_ema_decay.value_or(0),
          .capacity_factor = t.moe_expert_capacity_factor.value_or(0),
          .drop_lightest = t.moe_token_drop_policy == "probs",
          .jitter = t.moe_input_jitter_eps.value_or(0),
          .forced = !t.moe_router_force_load_balancing                    ? RouterRule::Forced::kNo
                    : t.moe_router_force_load_balancing_type == "uniform" ? RouterRule::Forced::kUniform
                                                                          : RouterRule::Forced::kEven,
          .all_to_all = t.moe_token_dispatcher_type != "allgather",
          .fp8_dispatch = t.moe_dispatch_fp8,
          .capacity_margin = t.moe_expert_capacity_margin.value_or(MoeConfig::Training::kKeepAll),
          .rounds = t.moe_expert_rounds.value_or(1),
          .keep_received = t.moe_keep_received_tokens};
}

}  // namespace

ModelConfig model_config_of(const config::Experiment& experiment, std::optional<std::int64_t> vocab,
                            const FamilyRegistry& families, std::vector<std::string>* warnings) {
  const StatedModel stated(experiment, families, warnings);
  const Family& family = stated.family();
  stated.check_switches(family);
  ModelConfig said = common(stated, vocab);
  said.family = family.model_type;
  read_stated_parts(stated, said);
  ModelConfig model = as_its_family_has_it(stated, said);
  warn_of_settings_without_effect(stated, model);
  model.moe.training = training(stated, model);
  const std::int64_t modules = experiment.trainer->mtp_num_layers.value_or(0);
  model.mtp = {.layers = modules,
               .enabled = modules > 0,
               .training = {.loss_scale = experiment.trainer->mtp_loss_scaling_factor}};
  set_adapters(experiment, model, families, warnings);
  return model;
}

}  // namespace primus
