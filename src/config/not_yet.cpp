#include "config/not_yet.h"

#include <array>
#include <utility>

namespace primus::config {
namespace {

using Row = std::pair<std::string_view, std::string_view>;

constexpr auto kEngines = std::to_array<Row>({{"native", "Primus's own engine"},
                                              {"megatron", "Megatron-LM"},
                                              {"torchtitan", "TorchTitan"},
                                              {"maxtext", "MaxText"},
                                              {"megatron_bridge", "Megatron Bridge"},
                                              {"nemo_automodel", "NeMo AutoModel"},
                                              {"maxdiffusion", "MaxDiffusion"},
                                              {"hummingbirdxt", "HummingbirdXT"},
                                              {"diffusion", "Primus's diffusion trainer"}});

// By the beginning of their names.
constexpr auto kModels = std::to_array<Row>({
    {"diffusion", "diffusion models make images, and Primus trains language models so far"},
    {"flux", "diffusion models make images, and Primus trains language models so far"},
    {"glm4", "GLM-4.5 to 4.7 (glm4_moe) is a family that is not built yet"},
    {"mamba", "Mamba needs state-space layers"},
    {"zebra_llama", "Zebra-Llama needs state-space or linear-attention layers beside latent attention"},
});

}  // namespace

std::string_view engine_name(std::string_view framework) {
  for (const auto& [name, title] : kEngines) {
    if (name == framework) return title;
  }
  return {};
}

std::string_view reason_without_preset(std::string_view model) {
  for (const auto& [prefix, reason] : kModels) {
    if (model.starts_with(prefix)) return reason;
  }
  return {};
}

std::string_view reason_without_value(std::string_view key, std::string_view value) {
  if (key == "tokenizer_type" && value == "KimiK2Tokenizer")
    return "Kimi K2's tokenizer is a tiktoken file with Python code beside it, which Primus does not have";
  return {};
}

}  // namespace primus::config
