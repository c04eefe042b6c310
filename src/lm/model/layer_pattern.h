// Selects layers in Megatron-LM's notation: a number N, or a list of one 0 or 1 per layer in Python's
// notation, "[0]*3+[1]*58".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace primus {

struct LayerPattern {
  std::int64_t every = 0;       // the number N; 0: the pattern is in `per_layer`
  std::vector<bool> per_layer;  // one entry per item of the list in the setting
};

// `words` is the key's value: one number, the items of a list, or parts of the notation. Returns nullopt if
// the value has none of these forms or lists more than `maximum` layers.
std::optional<LayerPattern> parse_layer_pattern(const std::vector<std::string>& words, std::int64_t maximum);

}  // namespace primus
