// Parses Megatron-LM's notation for a set of layers: a number N, whose meaning depends on the key, or a
// Python list with a 0 or a 1 for each layer, such as "[0]*3+[1]*58".
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

// `words` is the key's value as a list of words: one number, the items of a YAML list, or an expression that
// may be split at any place. Returns nullopt if the value has none of these forms or lists more than
// `maximum` layers.
std::optional<LayerPattern> parse_layer_pattern(const std::vector<std::string>& words, std::int64_t maximum);

}  // namespace primus
