// Stages, the kinds of training (key `stage`): the properties on which settings and other parts of the
// program depend. A file in lm/train/objectives/ implements the training of a stage and declares the stage in
// its ObjectiveEntry; the build collects these declarations. Pure data; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace primus::config {

struct TrainerConfig;

// The kind of training data. The kind determines which keys name the data.
enum class Material : std::uint8_t {
  kText,           // data_path and related keys, or mock_data
  kConversations,  // sft_dataset_name
  kPreferences,    // sft_dataset_name, with answers that are compared
  kPrompts,        // sft_dataset_name, with prompts whose answers the model generates
};

// beta and loss_type have TRL's defaults.
struct Stage {
  std::string_view name;       // a choice of the key `stage`
  std::string_view meaning{};  // follows the name in the key's help text: "which learns ..."; may be empty
  Material material = Material::kText;
  bool fine_tunes = false;           // training starts from pretrained weights
  bool mlperf_log = false;           // writes a log in MLPerf's format, and has a target loss
  bool chooses_policy_loss = false;  // kPrompts: loss_type chooses among several losses
  bool trains_values = false;        // kPrompts: a value model is trained, so a prompt may have one answer
  bool has_teacher = false;          // learns a teacher's distributions (distillation_on_policy_share)
  std::optional<double> default_beta{};  // default of the key `beta`; empty: the key stays unset
  std::string_view default_loss_type{};  // default of the key `loss_type`; empty: the key stays empty
};

std::span<const Stage> stages();
// Returns the choices of the key `stage`; help_of_stages() below returns the key's help text.
std::vector<std::string_view> names_of_stages();
// Returns the stages that read sft_dataset_name.
std::vector<std::string_view> stages_with_dataset_name();
// Returns the stages with sft_dataset_name whose data contain the answers to learn (sft_fit_to_data).
std::vector<std::string_view> stages_with_answers();
// Returns the stages of reinforcement learning: the model generates answers, which reward functions score.
std::vector<std::string_view> stages_with_rewards();
std::string_view help_of_stages();
// Returns the row of `config.stage`, which must be a valid choice of the key.
const Stage& stage_of(const TrainerConfig& config);

// Returns whether the model generates answers in some or all steps of training.
bool generates_answers(const TrainerConfig& config);
// Returns whether attention stays within each document or packed conversation of a sequence.
bool separates_documents(const TrainerConfig& config);

}  // namespace primus::config
