// The table of rotary cosines and sines of a model, including frequency scaling.
#pragma once

#include <cstdint>
#include <vector>

#include "lm/model/model_config.h"

namespace primus {

// Returns [positions, rotary_dim] fp32: the cosines of rotary_dim/2 frequencies, then the sines
// (turbo/rope/rope.h). Angles are computed in double. The attention factor of yarn or longrope multiplies
// both. With longrope, `positions` selects the short or the long list of divisors, as the sequence length
// does in transformers.
std::vector<float> make_rope_table(const ModelConfig& config, std::int64_t positions);

// Returns the factor of latent attention's scores with yarn, in addition to 1/sqrt(dim): the square of yarn's
// temperature for mscale_all_dim; 1 without mscale_all_dim (DeepSeek).
double yarn_score_scale(const RopeScaling& scaling);

}  // namespace primus
