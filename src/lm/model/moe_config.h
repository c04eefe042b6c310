// The mixture of experts of a model: architecture, and training of the routers. A member that corresponds to
// exactly one setting is declared in blocks/mixture_of_experts.cpp (model_fields.def).
#pragma once

#include <cmath>
#include <cstdint>

#include "turbo/router/router.h"

namespace primus {

struct MoeConfig {
#define MOE_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"
  turbo::RouterRule router;  // rule by which tokens are routed, including top_k
  bool choice_bias = false;  // whether a bias per expert is added only for the choice of experts
                             // (DeepSeek-V3)
  // Whether routing weights multiply an expert's input instead of its output (Llama 4).
  bool weigh_input = false;
  bool shared_gate = false;  // whether a sigmoid gate multiplies the shared experts' output (Qwen3-Next)
  bool biases = false;       // whether the router and the experts' matrices have biases (gpt-oss)
  // If above 0: the inputs of SwiGLU are clamped to swiglu_limit; alpha and shift are parameters of
  // turbo::ClampedSwigluForward (gpt-oss). If the shift is 0, shared experts are clamped, too (DeepSeek-V4).
  double swiglu_limit = 0, swiglu_alpha = 1.702, swiglu_shift = 1;

  // Settings for training only. Evaluation and generation choose experts by score, and drop no tokens.
  struct Training {
    double balance_loss = 0;         // coefficient of the load-balancing loss
    bool balance_sequences = false;  // true: the balance loss is computed per sequence; false: per microbatch
    // true: choices are counted over all microbatches of the step and all data-parallel ranks; false: only in
    // one microbatch
    bool balance_step = false;
    double z_loss = 0;
    double bias_update_rate = 0;  // step size of updates of choice_bias; 0: no updates
    // If above 0: the bias is set by quantiles (turbo/quantile_balance), from histograms with this number of
    // bins.
    std::int64_t quantile_bins = 0;
    double margin_low = -1, margin_high = 1;
    bool centred_bias = true;
    double kept_bias = 0;
    double capacity_factor = 0;  // max rows per expert, as a multiple of the mean load; 0: no limit
    // true: choices above the limit are dropped from the smallest weight on; false: choices of the last
    // tokens are dropped.
    bool drop_lightest = true;
    double jitter = 0;  // width of the random noise on the router's input; 0: no noise
    turbo::RouterRule::Forced forced = turbo::RouterRule::Forced::kNo;
    // For expert parallelism. true: tokens are exchanged by all-to-all; false: by all-gather.
    bool all_to_all = false;
    bool fp8_dispatch = false;  // tokens travel to experts in fp8; only with all_to_all
    // For expert parallelism: number of rows whose activations a rank keeps, as a multiple of the rank's
    // equal share of the choices. Does not affect results. Fewer kept rows take less memory and a few percent
    // more time.
    static constexpr double kKeepAll = 1e3, kFewerRows = 1.5;
    double capacity_margin = kKeepAll;
    // For expert parallelism: number of rounds in which a rank sends its tokens to experts
    // (engine/parallel/expert_rounds.h).
    std::int64_t rounds = 1;
    // For expert parallelism. true: a rank keeps received tokens until the backward pass; false: the backward
    // pass receives them again. Does not affect results.
    bool keep_received = false;

    // Returns the max rows per expert if tokens make `choices` choices in total; 0: no limit. Rounds like
    // get_capacity in Megatron-LM.
    std::int64_t capacity(std::int64_t choices, std::int64_t experts) const {
      const double even = static_cast<double>(choices) / static_cast<double>(experts);
      return static_cast<std::int64_t>(std::ceil(even * capacity_factor));
    }

    bool operator==(const Training&) const = default;
  } training;

  // Returns whether the layer looks up the experts of a token in a table, by the token's id.
  bool hashed(std::int64_t layer) const { return layer < hash_layers; }
  // Returns the width of an expert's input and output, which are hidden states or latents computed from
  // hidden states.
  std::int64_t width(std::int64_t hidden) const { return latent > 0 ? latent : hidden; }

  bool operator==(const MoeConfig&) const = default;
};

}  // namespace primus
