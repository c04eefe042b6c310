// Engines and models that AMD Primus has and this program lacks. For the name of such an engine or model, the
// user gets a one-sentence explanation instead of a list of unknown keys.
#pragma once

#include <string_view>

namespace primus::config {

// Returns the usual spelling of an engine's name: "torchtitan" is "TorchTitan". Empty for other names.
std::string_view engine_name(std::string_view framework);

// Returns why this model has no preset ("glm5.yaml", "diffusion/flux_12b"), as a sentence without a period;
// empty for unknown models.
std::string_view reason_without_preset(std::string_view model);

// Returns why this value of a known key is not supported, as a sentence without a period; empty for other
// values.
std::string_view reason_without_value(std::string_view key, std::string_view value);

}  // namespace primus::config
