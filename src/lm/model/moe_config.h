// The mixture of experts of a model: what it is made of, and how its routers are trained. Members that an
// experiment sets one for one are in model_fields.def.
#pragma once

#include <cmath>
#include <cstdint>

#include "turbo/router/router.h"

namespace primus {

struct MoeConfig {
#define MOE_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"
  turbo::RouterRule router;  // top_k and the rest of the rule
  bool choice_bias = false;  // a bias per expert that is added for choosing only (DeepSeek-V3)
  bool weigh_input = false;  // weights multiply what goes into an expert, not what comes out (Llama 4)
  bool shared_gate = false;  // of the shared experts: a sigmoid of a product of the token (Qwen3-Next)
  bool biases = false;       // of the router and of the experts' matrices (gpt-oss)
  // Above 0: SwiGLU is clamped to it, as turbo::ClampedSwigluForward has it with these two (gpt-oss). Without
  // a shift shared experts are clamped, too (DeepSeek-V4).
  double swiglu_limit = 0, swiglu_alpha = 1.702, swiglu_shift = 1;

  // Of training alone: evaluation and generation route by scores, and drop nothing.
  struct Training {
    double balance_loss = 0;         // coefficient of the load-balancing loss
    bool balance_sequences = false;  // over each sequence by itself, not over the microbatch
    // By the choices of all data-parallel ranks in the step so far, not by those of the microbatch alone.
    bool balance_step = false;
    double z_loss = 0;
    double bias_update_rate = 0;  // of choice_bias after each step; 0: it stays
    // The bias is set by quantiles instead (turbo/quantile_balance), from histograms of so many bins; 0: it
    // is not.
    std::int64_t quantile_bins = 0;
    double margin_low = -1, margin_high = 1;
    bool centred_bias = true;
    double kept_bias = 0;
    double capacity_factor = 0;  // times the mean load: rows that an expert takes at most; 0: all
    bool drop_lightest = true;   // beyond that, drop the smallest weights; false: the last tokens
    double jitter = 0;           // of the router's input
    turbo::RouterRule::Forced forced = turbo::RouterRule::Forced::kNo;
    // Where ranks share the experts: tokens travel by all-to-all instead of all-gather.
    bool all_to_all = false;

    // Rows that each of `experts` takes of so many choices; 0: all. Rounded as Megatron-LM's get_capacity.
    std::int64_t capacity(std::int64_t choices, std::int64_t experts) const {
      const double even = static_cast<double>(choices) / static_cast<double>(experts);
      return static_cast<std::int64_t>(std::ceil(even * capacity_factor));
    }

    bool operator==(const Training&) const = default;
  } training;

  // Whether a table says which experts a token goes to, by its number.
  bool hashed(std::int64_t layer) const { return layer < hash_layers; }
  // What goes into an expert and comes out: hidden states, or their latent.
  std::int64_t width(std::int64_t hidden) const { return latent > 0 ? latent : hidden; }

  bool operator==(const MoeConfig&) const = default;
};

}  // namespace primus
