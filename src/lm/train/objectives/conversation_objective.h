// Parts of objectives whose data are conversations, preferences or prompts: the key sft_dataset_name, the
// files of trained models, and the settings of reference models. Errors are Error(kInvalid) at the offending
// key.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "lm/data/chat_template.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/objectives/reference_model.h"

namespace primus {

// Runs `work`. If `work` throws an error without a position in a file, adds the position of the key.
void at_key(const config::Experiment& experiment, std::string_view key, const std::function<void()>& work);

// Sets eval_iters to 0, for stages without evaluation. Throws if the user asks for evaluation; `instead`: the
// end of the hint.
void leave_out_evaluation(config::Experiment& experiment, std::string_view instead);

// Returns whether the data that sft_dataset_name names exist.
bool has_conversations(const config::Experiment& experiment);
// Implements Objective::find_missing(). A glob is not checked.
void find_missing_conversations(const config::Experiment& experiment, std::vector<MissingInput>& missing);

// Makes generation stop at the token that ends a turn (Objective::teach()), if the tokenizer can write the
// format.
void teach_end_of_turn(const data::ConversationStyle& style, const Tokenizer& tokenizer, ModelConfig& model);

// Adds the model's stop ids to generation_config.json, which generation reads instead of config.json.
void put_stop_ids(const config::Experiment& experiment, const ModelConfig& model,
                  std::vector<Snapshot::Blob>& files);
// If `style` is a named format, replaces the model's own chat template by the template of the format, in all
// files that contain the template. Changes nothing if `files` contain no tokenizer.
void put_chat_template(const data::ConversationStyle& style, const Tokenizer& tokenizer,
                       std::vector<Snapshot::Blob>& files);

// Refuses a key reference_adapters that has no effect, or that the run does not support: without LoRA,
// without a reference model, or with base weights in 4 bits. Throws Error(kInvalid) at the key.
void check_reference_adapters(const config::Experiment& experiment);

// Returns the weights of the reference model of a run.
ReferenceWeights reference_weights_of(const config::Experiment& experiment);

}  // namespace primus
