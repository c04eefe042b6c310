// Translates AMD Primus's hybrids (model_type: mamba) to a model family of the native engine. Layers of the
// hybrids alternate between a mixer and a feed-forward; a block of the native engine contains both.
#pragma once

#include <map>
#include <string>

#include "config/experiment.h"
#include "config/problems.h"

namespace primus::config {

// Applies if model_type is mamba and `spec` names layers of gated delta networks or of Kimi delta attention.
// Translates as follows:
//
//   spec: [..., gdn_hybrid_stack_spec]            model_type: gated_deltanet
//   spec: [..., kda_hybrid_stack_spec]            model_type: kda
//   num_layers: 24                                num_layers: 12, blocks of a mixer and a feed-forward
//   hybrid_override_pattern: "*-M-M-M-..."        linear_attention_freq: [0, 1, 1, 1, ...]
//   hybrid_attention_ratio: 0.25                  linear_attention_freq, without a pattern
//
// Removes the translated keys from `settings`, which contain trainer keys under their canonical names;
// `layers` gives the source of each. Adds a problem for Mamba's state-space layers, which the native engine
// lacks, and for patterns that cannot be divided into blocks.
void take_hybrid(Value& settings, std::map<std::string, Layer>& layers, Problems& problems);

}  // namespace primus::config
