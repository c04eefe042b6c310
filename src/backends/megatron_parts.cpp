#include "backends/megatron_parts.h"

#include <nlohmann/json.hpp>

#include "config/trainer_config.h"

namespace primus::backends {
namespace {

using Json = nlohmann::ordered_json;

Json yarn(const config::TrainerConfig& t) {
  const bool both = t.mscale.value_or(0) != 0 && t.mscale_all_dim.value_or(0) != 0;
  return {{"rotary_scaling_factor", t.rope_scaling_factor},
          {"original_max_position_embeddings", t.original_max_position_embeddings},
          {"beta_fast", t.beta_fast},
          {"beta_slow", t.beta_slow},
          {"mscale", both ? Json(*t.mscale) : Json()},
          {"mscale_all_dim", both ? Json(*t.mscale_all_dim) : Json()},
          {"correction_range_round_to_int", t.yarn_correction_range_round_to_int}};
}

// Returns whether `scaling` is the scaling that Megatron-LM applies for --use-rope-scaling. This scaling does
// not depend on other arguments.
bool is_megatrons(const Json& scaling) {
  return scaling == Json{{"factor", 8.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 8192}};
}

void add_rope(const config::TrainerConfig& t, Json& parts) {
  const bool rotary = t.position_embedding_type == "rope" || t.position_embedding_type == "yarn";
  if (t.multi_latent_attention || !rotary) return;
  if (t.rope_scaling_type == "yarn") {
    parts["yarn"] = yarn(t);
  } else if (t.rope_scaling_type == "linear") {
    parts["rope_interpolation"] = {{"factor", t.rope_scaling_factor}};
  } else if (t.rope_scaling_type == "llama3") {
    const Json scaling = {{"factor", t.rope_scaling_factor},
                          {"low_freq_factor", t.rope_low_freq_factor},
                          {"high_freq_factor", t.rope_high_freq_factor},
                          {"original_max_position_embeddings", t.original_max_position_embeddings}};
    if (!is_megatrons(scaling)) parts["rope_scaling"] = scaling;
  }
}

}  // namespace

nlohmann::ordered_json megatron_parts(const config::TrainerConfig& t) {
  Json parts = Json::object();
  add_rope(t, parts);
  if (t.num_experts && t.router_logit_softcapping.value_or(0) > 0)
    parts["router_softcap"] = {{"cap", *t.router_logit_softcapping}};
  if (t.final_logit_softcapping.value_or(0) > 0)
    parts["final_softcap"] = {{"cap", *t.final_logit_softcapping}};
  if (t.fp4 && t.fp4_recipe == "mxfp4") parts["mxfp4"] = Json::object();
  return parts;
}

}  // namespace primus::backends
