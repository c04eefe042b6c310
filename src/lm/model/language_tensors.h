// The language model's tensors in a published folder. Multimodal models store the language model's tensors
// under "language_model.", or use "model.language_model." where text models use "model." (Qwen3.5). Other
// tensors of such a folder are ignored. In other folders all tensors belong to the language model.
//
// Published folders may fuse all experts of a layer into two tensors: <at>.gate_up_proj [experts, 2 * width,
// hidden] and <at>.down_proj [experts, hidden, width] (Qwen3.5). In gate_up_proj, the gate rows of an expert
// precede the up rows. A matrix of one expert, such as <at>.3.up_proj.weight, is read from these fused
// tensors if it is not stored separately.
//
// The import of a model and the copying of a folder use the same checks of this class. Errors are kInvalid
// and name the folder. Immutable; the folder must outlive this object.
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

#include "engine/runtime/parameters.h"
#include "lm/checkpoint/safetensors.h"

namespace primus {

// Tensor names as they are in the folder.
using TensorNames = std::set<std::string, std::less<>>;

class LanguageTensors {
 public:
  explicit LanguageTensors(const SafetensorsFolder& folder);

  const SafetensorsFolder& folder() const { return folder_; }
  // Returns the name that tensor `name` has in the folder.
  std::string full_name(std::string_view name) const;
  std::optional<TensorView> find(std::string_view name) const;
  // Like find(), but throws kInvalid if the tensor is missing or has another shape, as
  // SafetensorsFolder::at() does.
  TensorView at(std::string_view name, std::span<const std::int64_t> shape) const;
  std::string where() const { return folder_.folder().string(); }

  // Throws kInvalid if the folder has a copy of `part` (CheckpointPart::copies) that differs from `part`.
  // Adds the names of the part and of its copies to `used`.
  void check_copies(const engine::CheckpointPart& part, TensorNames& used) const;
  // Throws kInvalid, and names the tensor, if the model neither uses nor leaves out a tensor. Also throws if
  // the model is tied but the head in the folder differs from the embedding (transformers ties only equal
  // tensors). Redundant tensors are ignored. Returns one sentence per redundant tensor, and one sentence
  // about the tensors outside of the language model.
  std::vector<std::string> refuse_foreign(const TensorNames& used, const engine::ParameterStore& store) const;

 private:
  // Reverses full_name(); returns nullopt if the tensor does not belong to the language model.
  std::optional<std::string_view> own_name(std::string_view full, std::string& storage) const;

  // The fused tensors of a layer's experts. Layers are identified by the common prefix of the names
  // ("model.layers.0.mlp.experts").
  struct Fused {
    std::optional<TensorView> gate_up, down;
    // true: stored as [experts, hidden, 2 ffn] and [experts, ffn, hidden] (Qwen3-VL)
    bool by_columns = false;
    std::array<std::int64_t, 2> of_gate{}, of_down{};  // shapes of one expert's matrices
  };
  struct Piece {
    TensorView view;
    const TensorView* of;
  };
  std::optional<Piece> piece(std::string_view full) const;

  const SafetensorsFolder& folder_;
  std::map<std::string, Fused, std::less<>> fused_;
  std::string prefix_;   // prefix that all names have in the folder
  bool within_ = false;  // whether the folder has "model.language_model." in place of "model."
};

// Returns the names of the tensors of parameters that the store shares with another one
// (engine::allocate_beside), which loading does not read: their names in `tensors`, or the published names if
// `tensors` is null. Throws the errors of check_copies().
TensorNames shared_names(const engine::ParameterStore& store, const LanguageTensors* tensors = nullptr);

}  // namespace primus
