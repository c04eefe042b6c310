#include "lm/model/stated_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/trainer_config.h"
#include "lm/model/config_reader.h"
#include "lm/model/family_switches.h"
#include "lm/model/model_fields.h"
#include "lm/model/setting_names.h"

namespace primus {
namespace {

using turbo::RouterRule;
using Layers = std::vector<std::int64_t>;

class Agreement {
 public:
  explicit Agreement(const StatedModel& stated)
      : stated_(stated), experiment_(stated.experiment), t_(stated.t), families_(stated.families) {}

  ModelConfig as_the_family_has_it(const ModelConfig& c) const {
    try {
      return read_model_config(write_model_config(c, DType::kF32, families_), "", families_);
    } catch (const Error& error) {
      const std::string_view key = setting_of(error);
      // If the number of experts is missing, the width of experts is missing too. Some families report the
      // width first.
      if (!t_.num_experts && (key == "num_experts" || key == "ffn_hidden_size")) {
        throw experiment_.error_for(
            stated_.is_set("num_experts") ? "num_experts" : "model_type",
            fmt::format("num_experts is null, but model_type {} is a mixture of experts", t_.model_type),
            "set num_experts, or choose another model_type");
      }
      if (key.empty()) {
        throw experiment_.error_for("model_type",
                                    fmt::format("as a model of type {}: {}", t_.model_type, error.what()),
                                    error.hint());
      }
      // Group counts from a preset or from `load` may not fit the user's number of heads.
      constexpr std::string_view kHeads = "num_attention_heads", kGroups = "num_query_groups";
      const bool heads_are_newer =
          key == kGroups && stated_.is_set(kHeads) &&
          experiment_.provenance_of(kHeads).layer > experiment_.provenance_of(kGroups).layer;
      std::string hint = error.hint();
      if (key == kGroups && hint.empty()) {
        hint = fmt::format("set {} to a divisor of {}{}", kGroups, kHeads,
                           t_.load ? ", or omit both: load provides its own" : "");
      }
      throw experiment_.error_for(
          heads_are_newer       ? kHeads
          : stated_.is_set(key) ? key
                                : "model_type",
          fmt::format("{}: in the config.json of a {}, {}", key, t_.model_type, error.what()), hint);
    }
  }

  // Refuses settings whose value in `said` differs from the value in `has`. `has` is the model that the
  // family reads.
  void agree(const ModelConfig& has, const ModelConfig& said) const {
    same("untie_embeddings_and_output_weights", !said.tied_embeddings, !has.tied_embeddings);
    if (!always_latent(families_.find(has.family)))
      same("multi_latent_attention", t_.multi_latent_attention, has.any_keeps(Keeps::kLatents));
    same_fields({ModelPart::kModel, ModelPart::kLatent, ModelPart::kAttention, ModelPart::kIndexer,
                 ModelPart::kPooled, ModelPart::kConvolution, ModelPart::kLinear},
                said, has);
    same("window_size", said.attention.window, has.attention.window);
    same_layers(said.attention.chunk > 0 ? "attention_chunk_size" : "window_attn_skip_freq",
                said.local_layers(), has.local_layers());
    same_layers("lfm_layer_types", said.layers_keeping(Keeps::kInputs), has.layers_keeping(Keeps::kInputs));
    for (const LayerSpec::Pools what : {LayerSpec::Pools::kSparse, LayerSpec::Pools::kHeavy})
      same_layers("compress_ratios", said.layers_pooling(what), has.layers_pooling(what));
    same("hc_mult", said.hyper.streams, has.hyper.streams);
    same_layers("linear_attention_freq", said.layers_keeping(Keeps::kState),
                has.layers_keeping(Keeps::kState));
    same_layers("no_rope_freq", said.layers_without_rope(), has.layers_without_rope());
    same("num_experts", said.moe.experts, has.moe.experts);
    if (has.moe.experts == 0) return;
    if (has.ffn == has.moe.ffn) one_width("ffn_hidden_size", said.ffn, "moe_ffn_hidden_size", said.moe.ffn);
    if (has.moe.shared_ffn != said.moe.shared_ffn && has.moe.shared_ffn == has.moe.ffn) {
      one_width("moe_ffn_hidden_size", said.moe.ffn, "moe_shared_expert_intermediate_size",
                said.moe.shared_ffn);
    }
    same_fields({ModelPart::kMoe, ModelPart::kRouter}, said, has);
    Layers mixtures, mixtures_said;
    for (std::int64_t layer = 0; layer < has.layers; ++layer) {
      if (has.routed(layer)) mixtures.push_back(layer);
      if (said.routed(layer)) mixtures_said.push_back(layer);
    }
    same_layers("moe_layer_freq", mixtures_said, mixtures);
    const RouterRule& router = has.moe.router;
    const bool softmax = router.scoring == RouterRule::Scoring::kSoftmax;
    if_said<std::string>("moe_router_score_function", t_.moe_router_score_function,
                         softmax                                                ? "softmax"
                         : router.scoring == RouterRule::Scoring::kSqrtSoftplus ? "sqrtsoftplus"
                                                                                : "sigmoid");
    if_said("moe_router_pre_softmax", t_.moe_router_pre_softmax, softmax && !router.normalise);
    if_said("moe_router_enable_expert_bias", t_.moe_router_enable_expert_bias, has.moe.choice_bias);
    if_said("moe_apply_probs_on_input", t_.moe_apply_probs_on_input, has.moe.weigh_input);
  }

 private:
  // Returns the setting that an error about a config.json points to; empty: none.
  static std::string_view setting_of(const Error& error) {
    const auto* about = dynamic_cast<const ConfigKeyError*>(&error);
    const auto settings = settings_behind(about ? about->key() : std::string_view());
    return settings.empty() ? std::string_view() : settings.front();
  }

  template <class T>
  void same(std::string_view key, const T& said, const T& has) const {
    if (said != has) throw stated_.differs(key, fmt::format("{}", has));
  }
  void same_fields(std::initializer_list<ModelPart> parts, const ModelConfig& said,
                   const ModelConfig& has) const {
    for_each_model_field([&](const auto& field) {
      // Skips optional numbers of rope, because a config.json omits the numbers that its kind of scaling does
      // not use.
      if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(field.of(has))>>) {
        if (std::ranges::find(parts, field.part) != parts.end())
          same(field.name, field.of(said), field.of(has));
      }
    });
  }
  void same_layers(std::string_view key, const Layers& said, const Layers& has) const {
    if (said == has) return;
    throw stated_.differs(key, has.empty() ? "no layers" : fmt::format("layers {}", fmt::join(has, ", ")));
  }
  template <class T>
  void if_said(std::string_view key, const std::optional<T>& said, const T& has) const {
    if (said) same(key, *said, has);
  }

  // Checks two settings that the family stores as one number: both must be set to the same value.
  void one_width(std::string_view a, std::int64_t value_a, std::string_view b, std::int64_t value_b) const {
    if (value_a == value_b) return;
    if (experiment_.provenance_of(b).layer >= experiment_.provenance_of(a).layer) {
      std::swap(a, b);
      std::swap(value_a, value_b);
    }
    throw experiment_.error_for(a,
                                fmt::format("{} is {}, but {} is {}: model_type {} has one width for both", a,
                                            value_a, b, value_b, t_.model_type),
                                fmt::format("also set {} to {}", b, value_a));
  }

  const StatedModel& stated_;
  const config::Experiment& experiment_;
  const config::TrainerConfig& t_;
  const FamilyRegistry& families_;
};

}  // namespace

ModelConfig as_its_family_has_it(const StatedModel& stated, const ModelConfig& said) {
  const Agreement agreement(stated);
  ModelConfig read = agreement.as_the_family_has_it(said);
  agreement.agree(read, said);
  return read;
}

}  // namespace primus
