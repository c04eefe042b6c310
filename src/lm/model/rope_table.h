// A model's table of rotary cosines and sines, including the scaling of frequencies.
#pragma once

#include <cstdint>
#include <vector>

#include "lm/model/model_config.h"

namespace primus {

// Returns [positions, rotary_dim] fp32: the cosines of rotary_dim/2 frequencies, then the sines
// (turbo/rope/rope.h). Angles are computed in double. Cosines and sines are multiplied by the attention
// factor of yarn or longrope. With longrope, `positions` determines whether the short or the long list of
// divisors is used, as the sequence length does in transformers.
std::vector<float> make_rope_table(const ModelConfig& config, std::int64_t positions);

// Returns the factor by which latent attention with yarn multiplies its scores, in addition to 1/sqrt(dim).
// The factor is the square of yarn's temperature for mscale_all_dim (DeepSeek). Without mscale_all_dim, the
// factor is 1.
double yarn_score_scale(const RopeScaling& scaling);

}  // namespace primus
