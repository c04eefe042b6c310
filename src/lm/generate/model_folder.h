// Finds a trained model on disk from a path that a user gives.
//
// Errors: kInvalid (a file is missing or broken), kUnsupported (the family or an element type), kIo.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "engine/runtime/parameters.h"
#include "engine/runtime/rank.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/data/conversation_format.h"
#include "lm/generate/generation_config.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

struct ModelFolder {
  Path path;                              // folder with config.json, safetensors and tokenizer files
  std::optional<std::int64_t> iteration;  // iteration of a training checkpoint; empty for other folders
  // A PEFT folder (adapter_config.json), whose adapters belong to the model; empty: none.
  std::optional<Path> adapters = {};
};

// Finds the model. `given` is a Hugging Face folder, a checkpoint (iter_0000100), a run's folder of
// checkpoints, or the run's own folder. For a run, returns the newest complete checkpoint. If a run's folder
// has no checkpoint, looks in the `save` folder of its experiment.yaml and accepts the newest checkpoint that
// this experiment wrote.
//
// `given` may also be a PEFT folder with adapters of the model that its base_model_name_or_path names. That
// name is a path relative to the current folder, or to the PEFT folder.
ModelFolder find_model_folder(const Path& given);

// Like find_model_folder(), but does not look for the base model of a PEFT folder: the result then has only
// `adapters`, and the caller sets `path`.
ModelFolder find_model_or_adapters(const Path& given);

// Returns the folder that has the file `name` of the model, such as its tokenizer.json: the PEFT folder if it
// has this file, or else the folder of the model.
const Path& folder_with(const ModelFolder& folder, const char* name);

// Opens the folder's weights, with the tensors of its adapters.
SafetensorsFolder open_weights(const ModelFolder& folder);

// Returns the path of the model to which the folder's adapters belong: the base of a PEFT folder, or the
// model from which the run of a checkpoint started. Empty if unknown.
std::string base_model_of(const ModelFolder& folder);

// Reads the folder's config.json, and the adapters' settings. `notes` receives the notes of
// read_model_config().
ModelConfig load_model_config(const ModelFolder& folder, const FamilyRegistry& families,
                              std::vector<std::string>* notes = nullptr);

// Loads the tokenizer that belongs to the folder: its tokenizer.json, or the tokenizer that the checkpoint's
// experiment names.
std::unique_ptr<const Tokenizer> load_own_tokenizer(const ModelFolder& folder);

// Returns whether the checkpoint records that the model was trained on conversations, preferences or prompts.
bool is_fine_tuned(const ModelFolder& folder);

// Returns the model's conversation format: the format of its fine-tuning, which the checkpoint records, or
// else its chat template (choose_style in chat_template.h). Returns nullopt if both are missing. Throws
// Error(kInvalid) at the template's file if the template is broken.
std::optional<data::ConversationStyle> load_conversation_style(const ModelFolder& folder,
                                                               const Tokenizer& tokenizer);

// Like load_tokenizer(), except that `source.model` may also be a checkpoint or a run's folder. In this case,
// loads the tokenizer with which that model was trained.
std::unique_ptr<const Tokenizer> load_named_tokenizer(TokenizerSource source);

// Loads the tokenizer named by `type` and `model` (load_named_tokenizer), or the folder's own tokenizer
// (load_own_tokenizer) if both are empty. Refuses a tokenizer with more tokens than the model has embeddings.
std::unique_ptr<const Tokenizer> load_model_tokenizer(const ModelFolder& folder, const ModelConfig& config,
                                                      const std::string& type, const std::string& model,
                                                      std::vector<std::string>* notes = nullptr);

// Returns the sequence length (seq_length) with which a checkpoint was trained. Returns nullopt if the folder
// is not a training checkpoint or does not contain the value.
std::optional<std::int64_t> trained_sequence(const ModelFolder& folder);

// Returns the ids of the tokens that end a text: the tokenizer's end-of-sequence and end-of-document tokens,
// and eos_token_id of config.json and generation_config.json. The result contains no duplicates and no ids
// outside the vocabulary. `notes` lists ignored ids of generation_config.json; read_model_config() lists
// ignored ids of config.json.
std::vector<std::int32_t> load_stop_ids(const ModelFolder& folder, const ModelConfig& config,
                                        const Tokenizer& tokenizer,
                                        std::vector<std::string>* notes = nullptr);

// Returns the sampling settings in the folder's generation_config.json; all members are empty if there is no
// such file.
SamplingDefaults load_sampling_defaults(const ModelFolder& folder);

// Loads the folder's weights into the store. For a training checkpoint, verifies the checksums.
void load_model_weights(const ModelFolder& folder, engine::ParameterStore& store, engine::Rank& rank);

}  // namespace primus
