// The tensors of a published folder that are the language model's. Models that see images, too, have theirs
// under "language_model.", or what is "model." elsewhere under "model.language_model." (Qwen3.5), beside
// others that are nothing to us; elsewhere all of them are.
//
// Publications may have all experts of a layer in two tensors: <at>.gate_up_proj [experts, 2 * width,
// hidden], first gate's rows and then up's of each expert, and <at>.down_proj [experts, hidden, width]
// (Qwen3.5). Where a matrix of one expert, <at>.3.up_proj.weight, is not there by itself, it is found in
// them.
//
// What loading and copying a folder must hold against the model stands here. Errors are kInvalid at the
// folder. Immutable; the folder must outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
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
  std::optional<TensorView> find(std::string_view name) const;
  // The same; throws kInvalid where it is missing or has another shape, as SafetensorsFolder::at() does.
  TensorView at(std::string_view name, std::span<const std::int64_t> shape) const;
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

  // All experts of a layer, under the name of what holds them ("model.layers.0.mlp.experts").
  struct Fused {
    std::optional<TensorView> gate_up, down;
    bool by_columns = false;  // [experts, hidden, 2 ffn] and [experts, ffn, hidden] (Qwen3-VL)
    std::array<std::int64_t, 2> of_gate{}, of_down{};  // shapes of one expert's matrices
  };
  struct Piece {
    TensorView view;
    const TensorView* of;
  };
  std::optional<Piece> piece(std::string_view full) const;

  const SafetensorsFolder& folder_;
  std::map<std::string, Fused, std::less<>> fused_;
  std::string prefix_;   // of all names
  bool within_ = false;  // "model." is "model.language_model."
};

}  // namespace primus
