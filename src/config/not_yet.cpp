#include "config/not_yet.h"

#include <array>
#include <utility>

#include "config/framework.h"

namespace primus::config {
namespace {

using NamedText = std::pair<std::string_view, std::string_view>;

// Engines of AMD Primus that this program lacks.
constexpr auto kEngines =
    std::to_array<NamedText>({{"megatron_bridge", "Megatron Bridge"},
                              {"nemo_automodel", "NeMo AutoModel"},
                              {"maxdiffusion", "MaxDiffusion"},
                              {"hummingbirdxt", "HummingbirdXT"},
                              {"diffusion", "AMD Primus's diffusion trainer"},
                              {"specforge", "SpecForge, which trains drafts for speculative decoding"},
                              {"worldmirror", "WorldMirror, which trains models of 3D scenes"}});

// Models, by the start of their names.
constexpr auto kModels = std::to_array<NamedText>({
    {"deepseek_proxy", "DeepSeek's proxy models of AMD Primus have settings of its developers' branches"},
    {"diffusion", "diffusion models make images; Primus trains language models only"},
    {"flux", "diffusion models make images; Primus trains language models only"},
    {"gemma4", "Gemma 4 is a family that is not built yet"},
    {"glm5_3",
     "GLM-5.3 needs Kimi delta attention beside sparse latent attention with pooled keys, and "
     "hyper-connections"},
    {"glm5_next",
     "GLM-5.3 needs Kimi delta attention beside sparse latent attention with pooled keys, and "
     "hyper-connections"},
    {"hylo", "these hybrids need state-space or linear-attention layers beside latent attention"},
    {"mamba", "Mamba needs state-space layers"},
    {"minimax_m3", "MiniMax-M3 needs attention to blocks that an indexer chooses (MiniMax Sparse Attention)"},
    {"zaya1", "ZAYA1 needs compressed convolutional attention, and a router with a class that skips experts"},
    {"zebra_mamba", "these hybrids need state-space layers beside latent attention"},
    {"zebra_llama",
     "Zebra-Llama needs state-space layers beside latent attention, unless its mixers are gated "
     "delta networks or Kimi delta attention"},
});

}  // namespace

std::string_view engine_name(std::string_view framework) {
  if (const FrameworkEntry* entry = find_framework(framework)) return entry->title;
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
  if (key == "qk_clip")
    return "QK-Clip scales the projections of queries and keys by each head's largest attention logit, which "
           "attention "
           "does not keep";
  if (key == "te_precision_config_file")
    return "it is a file of Transformer Engine's; first_last_layers_bf16 keeps the first and the last blocks "
           "in bf16";
  if (key == "mxfp4_scale_rounding_mode")
    return "scales of MXFP4 are rounded half a digit upwards, which is 0";
  return {};
}

}  // namespace primus::config
