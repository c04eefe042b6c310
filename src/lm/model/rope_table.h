// The table of rotary cosines and sines for a model, scaling included.
#pragma once

#include <cstdint>
#include <vector>

#include "lm/model/model_config.h"

namespace primus {

// [positions, rotary_dim] fp32: cosines of rotary_dim/2 frequencies, then sines (turbo/rope/rope.h). Angles
// are computed in double; the attention factor of yarn or longrope multiplies both. With longrope,
// `positions` decides between its two lists of divisors, as the length of a sequence does in transformers.
std::vector<float> make_rope_table(const ModelConfig& config, std::int64_t positions);

// What latent attention with yarn multiplies its scores by, beside 1/sqrt(dim): the square of yarn's
// temperature for mscale_all_dim; 1 without (DeepSeek).
double yarn_score_scale(const RopeScaling& scaling);

}  // namespace primus
