#include "lm/model/language_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "engine/runtime/shared_parameters.h"

namespace primus {
namespace {

constexpr std::string_view kModel = "model.", kWithin = "model.language_model.";

constexpr std::string_view kGateUp = ".gate_up_proj", kDown = ".down_proj";

// Returns the embedding's name in checkpoints; every model has an embedding.
const std::string& embedding_name(const engine::ParameterStore& store) {
  const auto is_it = [](const engine::Parameter& parameter) { return parameter.name == "embedding"; };
  return std::ranges::find_if(store.parameters(), is_it)->parts.front().name;
}

bool same_bits(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && std::ranges::equal(a.data, b.data);
}

}  // namespace

LanguageTensors::LanguageTensors(const SafetensorsFolder& folder) : folder_(folder) {
  const std::string prefix = "language_model.";
  if (folder.find(prefix + "model.embed_tokens.weight")) prefix_ = prefix;
  within_ = folder.find(std::string(kWithin) + "embed_tokens.weight").has_value();
  for (std::size_t i = 0; i < folder.size(); ++i) {
    const TensorView tensor = folder[i];
    const bool gate_up = tensor.name.ends_with(kGateUp);
    if (tensor.shape.size() != 3 || (!gate_up && !tensor.name.ends_with(kDown))) continue;
    const std::size_t ending = gate_up ? kGateUp.size() : kDown.size();
    Fused& fused = fused_[std::string(tensor.name.substr(0, tensor.name.size() - ending))];
    (gate_up ? fused.gate_up : fused.down) = tensor;
  }
  for (auto& [name, fused] : fused_) {
    if (fused.gate_up && fused.down) {
      const std::span<const std::int64_t> wide = fused.gate_up->shape, back = fused.down->shape;
      fused.by_columns = wide[2] != back[1] && wide[1] == back[2];
    }
    const std::size_t out = fused.by_columns ? 2 : 1, in = 3 - out;
    if (fused.gate_up) fused.of_gate = {fused.gate_up->shape[out] / 2, fused.gate_up->shape[in]};
    if (fused.down) fused.of_down = {fused.down->shape[out], fused.down->shape[in]};
  }
}

std::optional<TensorView> LanguageTensors::find(std::string_view name) const {
  const std::string full = full_name(name);
  if (auto tensor = folder_.find(full)) return tensor;
  const std::optional<Piece> part = piece(full);
  return part ? std::optional(part->view) : std::nullopt;
}

TensorView LanguageTensors::at(std::string_view name, std::span<const std::int64_t> shape) const {
  const std::string full = full_name(name);
  const std::optional<Piece> part = folder_.find(full) ? std::nullopt : piece(full);
  if (!part) return folder_.at(full, shape);
  if (std::ranges::equal(part->view.shape, shape)) return part->view;
  throw invalid(fmt::format("tensor '{}' has shape {}, which does not contain '{}' of shape {}",
                            part->of->name, shape_text(part->of->shape), full, shape_text(shape)),
                "config.json and the weights belong to different models")
      .at(where());
}

// Returns one expert's matrix. `full` is <at>.<expert>.<name>.weight, where name is gate_proj, up_proj or
// down_proj.
std::optional<LanguageTensors::Piece> LanguageTensors::piece(std::string_view full) const {
  constexpr std::string_view kWeight = ".weight";
  if (fused_.empty() || !full.ends_with(kWeight)) return std::nullopt;
  std::string_view rest = full.substr(0, full.size() - kWeight.size());
  const auto take_last = [&rest] {
    const std::size_t dot = rest.rfind('.');
    if (dot == std::string_view::npos) return std::string_view();
    const std::string_view word = rest.substr(dot + 1);
    rest = rest.substr(0, dot);
    return word;
  };
  const std::string_view matrix = take_last(), number = take_last();
  const auto found = fused_.find(rest);
  if (found == fused_.end()) return std::nullopt;
  std::int64_t expert = -1;
  std::from_chars(number.data(), number.data() + number.size(), expert);
  const Fused& fused = found->second;
  const bool is_down = matrix == "down_proj";
  const std::optional<TensorView>& whole = is_down ? fused.down : fused.gate_up;
  if (!whole || (!is_down && matrix != "gate_proj" && matrix != "up_proj")) return std::nullopt;
  const bool odd = !is_down && whole->shape[fused.by_columns ? 2 : 1] % 2 != 0;
  if (expert < 0 || expert >= whole->shape[0] || odd) return std::nullopt;
  TensorView view = *whole;
  view.shape = is_down ? fused.of_down : fused.of_gate;
  const std::int64_t rows = view.shape[0], columns = view.shape[1];
  std::int64_t first = expert * whole->shape[1] * whole->shape[2], elements = rows * columns;
  if (matrix == "up_proj") first += fused.by_columns ? rows : elements;
  if (fused.by_columns) {
    view.column_stride = whole->shape[2];
    elements = (columns - 1) * view.column_stride + rows;
  }
  const auto size = static_cast<std::size_t>(size_of(whole->dtype));
  const std::size_t before = static_cast<std::size_t>(first) * size;
  view.data = whole->data.subspan(before, static_cast<std::size_t>(elements) * size);
  view.file_offset += before;
  return Piece{view, &*whole};
}

std::string LanguageTensors::full_name(std::string_view name) const {
  if (within_ && name.starts_with(kModel)) return std::string(kWithin).append(name.substr(kModel.size()));
  return prefix_ + std::string(name);
}

std::optional<std::string_view> LanguageTensors::own_name(std::string_view full, std::string& storage) const {
  if (!full.starts_with(prefix_)) return std::nullopt;
  if (!within_ || !full.starts_with(kModel)) return full.substr(prefix_.size());
  if (!full.starts_with(kWithin)) return std::nullopt;
  storage = std::string(kModel).append(full.substr(kWithin.size()));
  return storage;
}

void LanguageTensors::check_copies(const engine::CheckpointPart& part, TensorNames& used) const {
  const std::string full = full_name(part.name);
  used.insert(full);
  if (!folder_.find(full)) {
    if (const std::optional<Piece> of_fused = piece(full)) used.insert(std::string(of_fused->of->name));
  }
  const std::optional<TensorView> tensor = find(part.name);
  for (const std::string& name : part.copies) {
    used.insert(full_name(name));
    const std::optional<TensorView> copy = find(name);
    if (!tensor || !copy || same_bits(*tensor, *copy)) continue;
    throw invalid("tensor '" + name + "' differs from '" + part.name + "', although it must be a copy",
                  "the model uses one tensor for both: make them equal, or remove the copy")
        .at(where());
  }
}

TensorNames shared_names(const engine::ParameterStore& store, const LanguageTensors* tensors) {
  TensorNames names;
  for (const engine::Parameter& p : store.parameters()) {
    if (!engine::is_shared(store, p)) continue;
    for (const engine::CheckpointPart& part : p.parts) {
      if (tensors) {
        tensors->check_copies(part, names);
      } else {
        names.insert(part.name);
        names.insert(part.copies.begin(), part.copies.end());
      }
    }
  }
  return names;
}

std::vector<std::string> LanguageTensors::refuse_foreign(const TensorNames& used,
                                                         const engine::ParameterStore& store) const {
  const TensorNames shared = shared_names(store, this);
  std::vector<std::string> notes;
  std::int64_t other_parts = 0;
  for (std::size_t i = 0; i < folder_.size(); ++i) {
    const std::string_view full = folder_[i].name;
    if (used.contains(full) || shared.contains(full)) continue;
    std::string storage;
    const std::optional<std::string_view> own = own_name(full, storage);
    if (!own) {
      ++other_parts;
      continue;
    }
    const std::string_view name = *own;
    if (store.left_out(name)) continue;
    if (name.ends_with("rotary_emb.inv_freq")) {
      notes.push_back(fmt::format("'{}' is computed from config.json: left out", name));
    } else if (name == "lm_head.weight") {  // the head is tied: an untied model would have used this tensor
      const std::string& tied = embedding_name(store);
      const std::optional<TensorView> embedding = find(tied);
      if (embedding && !same_bits(*embedding, *find(name))) {
        throw invalid(
            fmt::format("tensor 'lm_head.weight' differs from '{}', but config.json ties them", tied),
            "write \"tie_word_embeddings\": false into config.json, as transformers reads it")
            .at(where());
      }
      notes.push_back("'lm_head.weight' is tied to the embedding: left out");
    } else {
      throw invalid(fmt::format("tensor '{}' is not part of this model", name),
                    "check that config.json belongs to these weights")
          .at(where());
    }
  }
  if (other_parts > 0) {
    notes.push_back(fmt::format("{} tensor(s) do not belong to the language model: left out", other_parts));
  }
  return notes;
}

}  // namespace primus
