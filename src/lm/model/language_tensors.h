// The tensors of a published folder that are the language model's. Models that see images, too, have theirs
// under "language_model.", or what is "model." elsewhere under "model.language_model." (Qwen3.5), beside
// others that are nothing to us; elsewhere all of them are.
//
// What loading and copying a folder must hold against the model stands here. Errors are kInvalid at the
// folder. Immutable; the folder must outlive it.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/parameters.h"
#include "lm/checkpoint/safetensors.h"

namespace primus {

// Full names, as the folder has them.
using TensorNames = std::set<std::string, std::less<>>;

class LanguageTensors {
 public:
  explicit LanguageTensors(const SafetensorsFolder& folder);

  const SafetensorsFolder& folder() const { return folder_; }
  // What `name` is called in the folder.
  std::string full_name(std::string_view name) const;
  std::optional<TensorView> find(std::string_view name) const { return folder_.find(full_name(name)); }
  std::string where() const { return folder_.folder().string(); }

  // Refuses a copy of `part` (CheckpointPart::copies) that is there and not equal to it. The names of part
  // and copies are added to `used`.
  void check_copies(const engine::CheckpointPart& part, TensorNames& used) const;
  // Refuses, by name, a tensor that is neither used nor left out by the model, and the head of a tied model
  // that differs from the embedding (transformers ties them only where they are equal). Those that follow
  // from others are passed over: returns a sentence for each, and one for other parts of the folder's model.
  std::vector<std::string> refuse_foreign(const TensorNames& used, const engine::ParameterStore& store) const;

 private:
  // The other way; nothing for what is not the language model's.
  std::optional<std::string_view> own_name(std::string_view full, std::string& storage) const;

  const SafetensorsFolder& folder_;
  std::string prefix_;   // of all names
  bool within_ = false;  // "model." is "model.language_model."
};

}  // namespace primus
