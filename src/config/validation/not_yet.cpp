#include "config/validation/not_yet.h"

#include <array>
#include <utility>

#include "config/framework.h"

namespace primus::config {
namespace {

using NamedText = std::pair<std::string_view, std::string_view>;

// Engines of AMD Primus that this program lacks.
constexpr auto kEngines =
    std::to_array<NamedText>({{"nemo_automodel", "NeMo AutoModel"},
                              {"maxdiffusion", "MaxDiffusion"},
                              {"hummingbirdxt", "HummingbirdXT"},
                              {"diffusion", "AMD Primus's diffusion trainer"},
                              {"specforge", "SpecForge, which trains drafts for speculative decoding"},
                              {"worldmirror", "WorldMirror, which trains models of 3D scenes"}});

// Models, identified by the start of their names.
constexpr auto kModels = std::to_array<NamedText>({
    {"deepseek_proxy",
     "AMD Primus's DeepSeek proxy models use settings that only its development branches have"},
    {"diffusion", "diffusion models make images; Primus trains language models only"},
    {"flux", "diffusion models make images; Primus trains language models only"},
    {"gemma4", "Primus does not have the Gemma 4 family yet"},
    {"glm5_3",
     "GLM-5.3 needs Kimi delta attention together with sparse latent attention over pooled keys, and "
     "hyper-connections"},
    {"glm5_next",
     "GLM-5.3 needs Kimi delta attention together with sparse latent attention over pooled keys, and "
     "hyper-connections"},
    {"hylo", "these hybrids need state-space or linear-attention layers together with latent attention"},
    {"mamba", "Mamba needs state-space layers"},
    {"minimax_m3",
     "MiniMax-M3 needs attention over blocks that an indexer selects (MiniMax Sparse Attention)"},
    {"zaya1", "ZAYA1 needs compressed convolutional attention, and a router with a class that skips experts"},
    {"zebra_mamba", "these hybrids need state-space layers together with latent attention"},
    {"zebra_llama",
     "Zebra-Llama needs state-space layers together with latent attention, unless its mixers are gated delta "
     "networks or Kimi delta attention"},
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
    return "Kimi K2's tokenizer is a tiktoken file with its own Python code, which Primus does not run";
  if (key == "qk_clip")
    return "QK-Clip scales the query and key projections by the largest attention logit of each head, which "
           "the attention kernels do not return";
  if (key == "te_precision_config_file")
    return "only Transformer Engine reads such a file; first_last_layers_bf16 keeps the first and last "
           "blocks in bf16";
  if (key == "mxfp4_scale_rounding_mode")
    return "the native engine always rounds MXFP4 scales half up, which is mode 0";
  return {};
}

}  // namespace primus::config
