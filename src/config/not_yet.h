// What Primus's users may name and what this program does not have yet: the other engines, and models that
// need operators of their own. One sentence each, instead of a list of unknown keys.
#pragma once

#include <string_view>

namespace primus::config {

// The name of an engine as people write it: "torchtitan" is "TorchTitan". Empty for names that are no
// engine's.
std::string_view engine_name(std::string_view framework);

// Why there is no preset of this model ("glm5.yaml", "diffusion/flux_12b"), as a sentence without a period;
// empty for models that nobody knows.
std::string_view reason_without_preset(std::string_view model);

// Why this value of a key, which Primus knows, is not there yet; likewise.
std::string_view reason_without_value(std::string_view key, std::string_view value);

}  // namespace primus::config
