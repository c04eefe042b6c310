// A trained model on disk, found from a path that a user gives.
//
// Errors: kInvalid (missing or broken), kUnsupported (a family or type that is not supported), kIo.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "engine/parameters.h"
#include "engine/rank.h"
#include "lm/data/conversation_format.h"
#include "lm/generate/generation_config.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

struct ModelFolder {
  Path path;                              // folder with config.json, safetensors and tokenizer files
  std::optional<std::int64_t> iteration;  // iteration; set only for a training checkpoint
};

// `given` is a Hugging Face folder, a checkpoint (iter_0000100), a run's folder of checkpoints, or the run's
// own folder; for the last two, returns the newest complete checkpoint. If a run's folder has no checkpoint,
// looks in the `save` folder of its experiment.yaml and accepts the newest checkpoint that this experiment
// wrote.
ModelFolder find_model_folder(const Path& given);

// `notes` receives the notes of read_model_config().
ModelConfig load_model_config(const ModelFolder& folder, const FamilyRegistry& families,
                              std::vector<std::string>* notes = nullptr);

// Loads the folder's own tokenizer: its tokenizer.json, or the tokenizer that the checkpoint's experiment
// names.
std::unique_ptr<const Tokenizer> load_own_tokenizer(const ModelFolder& folder);

// Returns the model's conversation format: the format of its fine-tuning, which the checkpoint records, or
// else the format of its chat template. Returns nothing if both are missing or the template's format is not
// supported (chat_template.h).
std::optional<data::ConversationStyle> load_conversation_style(const ModelFolder& folder,
                                                               const Tokenizer& tokenizer);

// Like load_tokenizer(), but `source.model` may also be a checkpoint or a run's folder: loads the tokenizer
// that this model was trained with. Throws Error(kInvalid) if a file is given for the ByteTokenizer.
std::unique_ptr<const Tokenizer> load_named_tokenizer(TokenizerSource source);

// Loads the tokenizer named by `type` and `model` (load_named_tokenizer), or the folder's own tokenizer
// (load_own_tokenizer) if both are empty. Refuses a tokenizer with more tokens than the model has embeddings.
std::unique_ptr<const Tokenizer> load_model_tokenizer(const ModelFolder& folder, const ModelConfig& config,
                                                      const std::string& type, const std::string& model,
                                                      std::vector<std::string>* notes = nullptr);

// Returns the tokens per sequence (seq_length) that a checkpoint was trained with. Returns nothing if the
// folder is not a training checkpoint or does not contain the value.
std::optional<std::int64_t> trained_sequence(const ModelFolder& folder);

// Returns the tokens that end a text: the tokenizer's end of sequence and of document, and eos_token_id of
// config.json and generation_config.json. The result has no duplicates and no ids outside the vocabulary.
// `notes` names ignored ids of generation_config.json (read_model_config() names those of config.json).
std::vector<std::int32_t> load_stop_ids(const ModelFolder& folder, const ModelConfig& config,
                                        const Tokenizer& tokenizer,
                                        std::vector<std::string>* notes = nullptr);

// Returns the sampling settings of the folder's generation_config.json; all are absent if there is no such
// file.
SamplingDefaults load_sampling_defaults(const ModelFolder& folder);

// Loads weights into the store; verifies the checksums of a training checkpoint.
void load_model_weights(const ModelFolder& folder, engine::ParameterStore& store, engine::Rank& rank);

}  // namespace primus
