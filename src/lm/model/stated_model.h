// The model that an experiment describes: the settings, the set of explicit settings, and errors that point
// to settings. Internal to lm/model. Const and stateless, so thread-safe.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/experiment.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

enum class ModelPart : std::uint8_t;  // defined in lm/model/model_fields.h

// The model_type of a model that matches no published architecture.
inline constexpr const char* kOwnFamily = "primus_gpt";
// Entry of lfm_layer_types that marks a layer with a short convolution.
inline constexpr std::string_view kConvolutionType = "conv";
// Values of the key experimental_attention_variant.
inline constexpr const char *kGatedDeltaVariant = "gated_delta_net", *kSparseVariant = "dsa";

class StatedModel {
 public:
  // All referenced objects must outlive this object. `without_effect` may be null.
  StatedModel(const config::Experiment& of, const FamilyRegistry& registry,
              std::vector<std::string>* without_effect)
      : experiment(of), t(of.trainer), families(registry), warnings(without_effect) {}

  // Returns the family that the settings select. Throws if Primus has no family of that name.
  const Family& family() const;
  // Throws an error for a switch whose value contradicts the family.
  void check_switches(const Family& family) const;
  // Returns whether the experiment or the command line sets the key explicitly.
  bool is_set(std::string_view key) const;
  bool has_sinks() const;
  // Returns the error for a key whose value differs from `has`, the value that this model_type requires.
  Error differs(std::string_view key, std::string_view has) const;
  // Copies the fields of the given parts from the settings to `c`.
  void take(std::initializer_list<ModelPart> parts, ModelConfig& c) const;

  const config::Experiment& experiment;
  const config::TrainerConfig& t;  // settings of the experiment
  const FamilyRegistry& families;
  std::vector<std::string>* const warnings;  // warnings about settings without effect; may be null

 private:
  std::string family_name() const;
  std::string gated_delta_family() const;
  void warn_of_own_family(const std::string& reason, std::string_view key) const;
};

}  // namespace primus
