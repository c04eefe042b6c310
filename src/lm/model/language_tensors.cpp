#include "lm/model/language_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace primus {
namespace {

constexpr std::string_view kModel = "model.", kWithin = "model.language_model.";

bool same_bits(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && std::ranges::equal(a.data, b.data);
}

}  // namespace

LanguageTensors::LanguageTensors(const SafetensorsFolder& folder) : folder_(folder) {
  const std::string prefix = "language_model.";
  if (folder.find(prefix + "model.embed_tokens.weight")) prefix_ = prefix;
  within_ = folder.find(std::string(kWithin) + "embed_tokens.weight").has_value();
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
  used.insert(full_name(part.name));
  const std::optional<TensorView> tensor = find(part.name);
  for (const std::string& name : part.copies) {
    used.insert(full_name(name));
    const std::optional<TensorView> copy = find(name);
    if (!tensor || !copy || same_bits(*tensor, *copy)) continue;
    throw invalid("tensor '" + name + "' differs from '" + part.name + "', which it is a copy of",
                  "the model shares one tensor for both: make them equal, or leave the copy out")
        .at(where());
  }
}

std::vector<std::string> LanguageTensors::refuse_foreign(const TensorNames& used,
                                                         const engine::ParameterStore& store) const {
  std::vector<std::string> notes;
  std::int64_t other_parts = 0;
  for (std::size_t i = 0; i < folder_.size(); ++i) {
    const std::string_view full = folder_[i].name;
    if (used.contains(full)) continue;
    std::string storage;
    const std::optional<std::string_view> own = own_name(full, storage);
    if (!own) {
      ++other_parts;
      continue;
    }
    const std::string_view name = *own;
    if (store.left_out(name)) continue;
    if (name.ends_with("rotary_emb.inv_freq")) {
      notes.push_back(fmt::format("'{}' follows from config.json: left out", name));
    } else if (name == "lm_head.weight") {  // a model that is not tied has used it
      const std::optional<TensorView> embedding = find("model.embed_tokens.weight");
      if (embedding && !same_bits(*embedding, *find(name))) {
        throw invalid(
            "tensor 'lm_head.weight' differs from 'model.embed_tokens.weight', and config.json ties them",
            "write \"tie_word_embeddings\": false into config.json, as transformers reads it")
            .at(where());
      }
      notes.push_back("'lm_head.weight' is tied to the embedding: left out");
    } else {
      throw invalid(fmt::format("tensor '{}' is not part of this model", name),
                    "does config.json describe these weights?")
          .at(where());
    }
  }
  if (other_parts > 0) {
    notes.push_back(fmt::format("{} tensor(s) are not the language model's: left out", other_parts));
  }
  return notes;
}

}  // namespace primus
