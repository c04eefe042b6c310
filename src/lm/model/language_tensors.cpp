#include "lm/model/language_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"

namespace primus {
namespace {

bool same_bits(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && std::ranges::equal(a.data, b.data);
}

}  // namespace

LanguageTensors::LanguageTensors(const SafetensorsFolder& folder) : folder_(folder) {
  const std::string prefix = "language_model.";
  if (folder.find(prefix + "model.embed_tokens.weight")) prefix_ = prefix;
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
    if (!full.starts_with(prefix_)) {
      ++other_parts;
      continue;
    }
    const std::string_view name = full.substr(prefix_.size());
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
