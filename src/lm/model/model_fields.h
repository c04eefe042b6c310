// The table of model_fields.def as code: visits every model field that corresponds to one setting.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "config/trainer_config.h"
#include "lm/model/model_config.h"

namespace primus {

enum class ModelPart : std::uint8_t {
  kModel,
  kLatent,
  kAttention,
  kIndexer,
  kPooled,
  kConvolution,
  kLinear,
  kMoe,
  kRouter,
  kRope
};
enum class WhenLoaded : std::uint8_t { kShape, kFixed, kFlexible, kApart };

// One line of the table. `setting` points to a member of TrainerConfig; `of(model)` returns a reference to
// the model's member.
template <class Setting, class Member>
struct ModelField {
  std::string_view name;  // name of the setting
  ModelPart part;
  WhenLoaded when_loaded;
  std::string_view config_keys;  // keys in config.json, separated by spaces
  Setting config::TrainerConfig::*setting;
  Member of;

  // Copies the setting to the member. A null setting leaves the member unchanged.
  void read(const config::TrainerConfig& settings, ModelConfig& model) const {
    assign(of(model), settings.*setting);
  }
  // Copies the member to the setting. If the setting is optional but the member is not, a member of 0 makes
  // the setting null.
  void write(const ModelConfig& model, config::TrainerConfig& settings) const {
    const auto& value = of(model);
    if constexpr (requires { (settings.*setting).has_value(); }) {
      if constexpr (requires { value.has_value(); }) {
        settings.*setting = value;
      } else {
        settings.*setting = static_cast<typename Setting::value_type>(value);
        if (value == 0) settings.*setting = std::nullopt;
      }
    } else {
      settings.*setting = value;
    }
  }

 private:
  template <class T, class U>
  static void assign(T& member, const U& said) {
    member = static_cast<T>(said);
  }
  template <class T, class U>
  static void assign(T& member, const std::optional<U>& said) {
    if (said) member = static_cast<T>(*said);
  }
};

// Calls visit(ModelField) for each line of the table, in order.
template <class Visit>
void for_each_model_field(Visit&& visit) {
#define PRIMUS_FIELD(part, path, setting, when_loaded, keys)                                                  \
  visit(ModelField{#setting, ModelPart::part, WhenLoaded::when_loaded, keys, &config::TrainerConfig::setting, \
                   [](auto& model) -> auto& { return path;                                                    \
  }                                                                                                           \
  });
#define MODEL_FIELD(type, member, initial, setting, when_loaded, keys) \
  PRIMUS_FIELD(kModel, model.member, setting, when_loaded, keys)
#define LATENT_FIELD(type, member, initial, setting, when_loaded, keys) \
  PRIMUS_FIELD(kLatent, model.attention.latent.member, setting, when_loaded, keys)
#define ATTENTION_FIELD(type, member, initial, setting, when_loaded, keys) \
  PRIMUS_FIELD(kAttention, model.attention.member, setting, when_loaded, keys)
#define INDEXER_FIELD(type, member, initial, setting, when_loaded, keys) \
  PRIMUS_FIELD(kIndexer, model.attention.indexer.member, setting, when_loaded, keys)
#define POOLED_FIELD(type, member, initial, setting, when_loaded, keys) \
  PRIMUS_FIELD(kPooled, model.attention.pooled.member, setting, when_loaded, keys)
#define CONVOLUTION_FIELD(type, member, initial, setting, when_loaded, keys) \
  PRIMUS_FIELD(kConvolution, model.convolution.member, setting, when_loaded, keys)
#define LINEAR_FIELD(type, member, initial, setting, when_loaded, keys) \
  PRIMUS_FIELD(kLinear, model.linear.member, setting, when_loaded, keys)
#define MOE_FIELD(type, member, initial, setting, when_loaded, keys) \
  PRIMUS_FIELD(kMoe, model.moe.member, setting, when_loaded, keys)
#define ROUTER_FIELD(type, member, initial, setting, when_loaded, keys) \
  PRIMUS_FIELD(kRouter, model.moe.router.member, setting, when_loaded, keys)
#define ROPE_FIELD(type, member, initial, setting, when_loaded, keys) \
  PRIMUS_FIELD(kRope, model.rope_scaling.member, setting, when_loaded, keys)
#include "lm/model/model_fields.def"
#undef PRIMUS_FIELD
}

}  // namespace primus
