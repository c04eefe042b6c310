// Reads and writes adapter_config.json, the settings of a PEFT folder with LoRA adapters, and matches them
// with the matrices of a model. The rules are PEFT 0.21's:
//
//   target_modules    a list: names, or the ends of names ("q_proj"); a text: a regular expression for
//                     complete names, or "all-linear", which excludes the head
//   rank_pattern,     numbers for the names whose end matches a regular expression; the first match counts
//   alpha_pattern
//   layers_to_transform, layers_pattern   restrict a list of targets to some layers
//   exclude_modules   like target_modules
//   modules_to_save   every module whose name ends with one of the texts is trained without adapters: "norm"
//                     matches every norm of a layer
//
// B (A x) has the factor alpha / r, or alpha / sqrt(r) with use_rslora.
//
// Errors: kInvalid for values that PEFT does not accept, kUnsupported for features that Primus does not have.
// The error names the key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// A list of modules, or a regular expression.
struct ModuleNames {
  std::vector<std::string> names;
  std::optional<std::string> expression;

  bool empty() const { return names.empty() && !expression; }
};

// The settings of adapter_config.json that Primus supports.
struct PeftConfig {
  std::int64_t r = 8;
  double alpha = 8, dropout = 0;
  bool use_rslora = false, use_dora = false, lora_bias = false;
  bool all_linear = false;
  bool base_biases = false;  // `bias` is not "none": the biases of the base model are trained, if it has any
  ModuleNames targets, excluded;
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<std::string> modules_to_save, layers_pattern;
  std::optional<std::vector<std::int64_t>> layers;
  std::string base;  // base_model_name_or_path
};

// `where` names the file in error messages.
PeftConfig read_peft_config(std::string_view text, const std::string& where);

// Whether each entry of target_modules, exclude_modules, rank_pattern, alpha_pattern and layers_to_transform
// must match a module of the model. PEFT requires only one match in all of target_modules, so published
// adapters may name modules that their model does not have.
enum class Entries : std::uint8_t { kMayMatchNothing, kAllMatch };
// Returns the adapters that the settings add to a model without adapters. Errors: kInvalid for an entry that
// must match, but matches nothing.
LoraConfig adapters_of(const PeftConfig& settings, const ModelConfig& model, const FamilyRegistry& families,
                       const std::string& where, Entries entries = Entries::kMayMatchNothing);

// Returns the text of adapter_config.json for the model's adapters, of either kind (LoraConfig). Throws
// kUnsupported for adapters that PEFT cannot load: adapters of experts. `base`: base_model_name_or_path.
std::string write_peft_config(const ModelConfig& model, const FamilyRegistry& families,
                              const std::string& base);

}  // namespace primus
