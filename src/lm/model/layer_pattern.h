// Which layers of a model something holds for, as Megatron-LM's keys say it: a number N, or a list of 0 and 1
// per layer in Python's notation, "[0]*3+[1]*58".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace primus {

struct LayerPattern {
  std::int64_t every = 0;       // N; 0: there is a list
  std::vector<bool> per_layer;  // as long as the list says
};

// `words` is the key's value: one number, the list's items, or parts of the notation. Empty when it is none
// of these, or would have more than `most` layers.
std::optional<LayerPattern> parse_layer_pattern(const std::vector<std::string>& words, std::int64_t most);

}  // namespace primus
