// The language model's tensors in a published folder. Multimodal models store the language model's tensors
// under "language_model.", or use "model.language_model." where text models use "model." (Qwen3.5). Other
// tensors of such a folder are ignored. In other folders all tensors belong to the language model.
//
// Publications may fuse all experts of a layer into two tensors: <at>.gate_up_proj [experts, 2 * width,
// hidden], which holds each expert's gate rows and then its up rows, and <at>.down_proj [experts, hidden,
// width] (Qwen3.5). If the matrix of one expert, such as <at>.3.up_proj.weight, is not stored separately, it
// is read from these fused tensors.
//
// Loading and copying a folder share these checks. Errors are kInvalid, with the folder as their place.
// Immutable; the folder must outlive it.
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

// Full names, as in the folder.
using TensorNames = std::set<std::string, std::less<>>;

class LanguageTensors {
 public:
  explicit LanguageTensors(const SafetensorsFolder& folder);

  const SafetensorsFolder& folder() const { return folder_; }
  // Returns the name of tensor `name` in the folder.
  std::string full_name(std::string_view name) const;
  std::optional<TensorView> find(std::string_view name) const;
  // Like find(), but throws kInvalid if the tensor is missing or has another shape, as
  // SafetensorsFolder::at() does.
  TensorView at(std::string_view name, std::span<const std::int64_t> shape) const;
  std::string where() const { return folder_.folder().string(); }

  // Refuses a copy of `part` (CheckpointPart::copies) that exists and differs from it. Adds the names of the
  // part and of its copies to `used`.
  void check_copies(const engine::CheckpointPart& part, TensorNames& used) const;
  // Refuses, by name, a tensor that the model neither uses nor leaves out, and a tied model's head that
  // differs from the embedding (transformers ties head and embedding only if they are equal). Ignores
  // redundant tensors. Returns one sentence per redundant tensor, and one for the tensors of other parts of
  // the folder's model.
  std::vector<std::string> refuse_foreign(const TensorNames& used, const engine::ParameterStore& store) const;

 private:
  // The inverse of full_name(); nullopt for tensors outside the language model.
  std::optional<std::string_view> own_name(std::string_view full, std::string& storage) const;

  // All experts of a layer, keyed by the common prefix ("model.layers.0.mlp.experts").
  struct Fused {
    std::optional<TensorView> gate_up, down;
    // True: stored as [experts, hidden, 2 ffn] and [experts, ffn, hidden] (Qwen3-VL).
    bool by_columns = false;
    std::array<std::int64_t, 2> of_gate{}, of_down{};  // shapes of the matrices of one expert
  };
  struct Piece {
    TensorView view;
    const TensorView* of;
  };
  std::optional<Piece> piece(std::string_view full) const;

  const SafetensorsFolder& folder_;
  std::map<std::string, Fused, std::less<>> fused_;
  std::string prefix_;   // prefix of all names in the folder
  bool within_ = false;  // whether "model." is stored as "model.language_model."
};

}  // namespace primus
