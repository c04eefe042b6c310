// A trained model as it lies on disk, found from whatever a user points at.
//
// Errors: kInvalid (nothing there, or broken), kUnsupported (a family or type Primus does not have), kIo.
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
#include "lm/model/family.h"
#include "lm/model/model_config.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

struct ModelFolder {
  Path path;                              // config.json, safetensors, tokenizer files
  std::optional<std::int64_t> iteration;  // of a training checkpoint
};

// `given` is a Hugging Face folder, a checkpoint (iter_0000100), a run's folder of checkpoints, or the run's
// own folder: of the last two, the newest complete checkpoint is taken. A run's folder without one stands for
// the newest where its experiment.yaml says (`save`), if that run's own experiment wrote it.
ModelFolder find_model_folder(const Path& given);

// `notes` is given what read_model_config() has to say.
ModelConfig load_model_config(const ModelFolder& folder, const FamilyRegistry& families,
                              std::vector<std::string>* notes = nullptr);

// The folder's own tokenizer: its tokenizer.json, or what the checkpoint's experiment names.
std::unique_ptr<const Tokenizer> load_own_tokenizer(const ModelFolder& folder);

// How the model wants conversations to be written: as it was fine-tuned on them, by its checkpoint, or as its
// chat template has them. Nothing: neither says so, or the template is of another format (chat_template.h).
std::optional<data::ConversationStyle> load_conversation_style(const ModelFolder& folder,
                                                               const Tokenizer& tokenizer);

// load_tokenizer(), where `source.model` may also be a checkpoint or a run's folder: the tokenizer that it
// was trained with.
std::unique_ptr<const Tokenizer> load_named_tokenizer(TokenizerSource source);

// load_own_tokenizer(), or the one named by `type` and `model` (load_named_tokenizer) when either is not
// empty. Refuses one with more tokens than the model has embeddings.
std::unique_ptr<const Tokenizer> load_model_tokenizer(const ModelFolder& folder, const ModelConfig& config,
                                                      const std::string& type, const std::string& model);

// The tokens per sequence (seq_length) that a checkpoint was trained with. Nothing: it is no checkpoint of
// training, or does not say.
std::optional<std::int64_t> trained_sequence(const ModelFolder& folder);

// The tokens that end a text: the tokenizer's end of sequence and of document, and what config.json and
// generation_config.json list as eos_token_id. Each once; ids outside the vocabulary are left out. Those of
// generation_config.json are named in `notes` (those of config.json are named by read_model_config()).
std::vector<std::int32_t> load_stop_ids(const ModelFolder& folder, const ModelConfig& config,
                                        const Tokenizer& tokenizer,
                                        std::vector<std::string>* notes = nullptr);

// Weights into the store; those of a training checkpoint are compared with their checksums on the way.
void load_model_weights(const ModelFolder& folder, engine::ParameterStore& store, engine::Rank& rank);

}  // namespace primus
