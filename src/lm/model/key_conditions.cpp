#include "lm/model/key_conditions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>

#include "config/validation/without_effect.h"
#include "lm/model/layer_kind.h"

namespace primus {
namespace {

// A feature of a model that is not a kind of layer. The members are: whether a model has the feature, the key
// that requests the feature, and the keys that only the feature reads. Kinds of layers have LayerKind::keys
// instead.
struct Condition {
  bool (*met)(const ModelConfig&);
  std::string_view asked_for;
  std::span<const std::string_view> keys;
};

constexpr auto kStreams = std::to_array<std::string_view>({"hc_sinkhorn_iters", "hc_eps"});
// Expert keys whose condition can be checked only with the model. config/validation/validate.cpp checks the
// other keys.
constexpr auto kExperts =
    std::to_array<std::string_view>({"num_hash_layers", "routed_expert_hidden_size", "latent_moe_use_norm"});
constexpr auto kExpertLatents = std::to_array<std::string_view>({"latent_moe_use_norm"});
constexpr auto kHeads =
    std::to_array<std::string_view>({"group_query_attention", "num_query_groups", "kv_channels"});

constexpr auto kWindows = std::to_array<std::string_view>({"window_size", "window_attn_skip_freq"});
constexpr auto kRotation = std::to_array<std::string_view>({"rotary_base"});

// Returns whether any layer rotates queries and keys by their positions.
bool rotates(const ModelConfig& c) {
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const LayerSpec& spec = c.spec(layer);
    const Keeps keeps = spec.attention->keeps;
    const bool attends = keeps == Keeps::kKeys || keeps == Keeps::kPooled ||
                         (keeps == Keeps::kLatents && !c.attention.latent.nope);
    if (attends && spec.rope) return true;
  }
  return false;
}

const auto kConditions = std::to_array<Condition>({
    {[](const ModelConfig& c) { return c.hyper.streams > 1; }, "with hc_mult", kStreams},
    {[](const ModelConfig& c) { return c.moe.experts > 0; }, "with num_experts", kExperts},
    {[](const ModelConfig& c) { return c.moe.latent > 0; }, "with routed_expert_hidden_size", kExpertLatents},
    {[](const ModelConfig& c) { return !c.any_keeps(Keeps::kLatents); },
     "without multi_latent_attention, which has separate head dimensions", kHeads},
    {[](const ModelConfig& c) { return !c.any_keeps(Keeps::kPooled); },
     "without compress_ratios, whose window is attn_sliding_window", kWindows},
    {rotates, "with layers that rotate queries and keys by their positions", kRotation},
});

bool reads(const LayerKind& kind, std::string_view key) {
  return std::ranges::find(kind.keys, key) != kind.keys.end();
}

// Returns which keys select the layers that read `key`, as text: "with multi_latent_attention or
// compress_ratios".
std::string asked_for(std::string_view key) {
  std::string text;
  for (const LayerKind* kind : layer_kinds()) {
    if (reads(*kind, key)) text += fmt::format("{} {}", text.empty() ? "with" : " or", kind->asked_for);
  }
  return text;
}

}  // namespace

void warn_of_unread_keys(const config::Experiment& experiment, const ModelConfig& model,
                         std::vector<std::string>& warnings) {
  std::vector<std::string_view> done;
  const auto warn = [&](std::string_view key, std::string_view condition) {
    if (!config::is_said(experiment, key) || std::ranges::find(done, key) != done.end()) return;
    done.push_back(key);
    warnings.push_back(fmt::format("{}: {} has an effect only {}", experiment.provenance_of(key).describe(),
                                   experiment.name_of(key), condition));
  };
  const std::vector<const LayerKind*> own = kinds_of(model);
  for (const LayerKind* kind : layer_kinds()) {
    for (const std::string_view key : kind->keys) {
      if (std::ranges::none_of(own, [&](const LayerKind* has) { return reads(*has, key); }))
        warn(key, asked_for(key));
    }
  }
  for (const Condition& condition : kConditions) {
    if (condition.met(model)) continue;
    for (const std::string_view key : condition.keys) warn(key, condition.asked_for);
  }
}

}  // namespace primus
