// The small files next to a tokenizer.json or tokenizer.model, read as transformers reads them.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lm/tokenizer/huggingface/added_tokens.h"

namespace primus {

// Contents of the files; empty for a missing file.
struct SideFiles {
  std::string tokenizer_config_json;
  std::string special_tokens_map_json;
  std::string added_tokens_json;
  std::string chat_template_jinja;
  std::filesystem::path read_from = {};  // path of the folder, for messages

  // Writes the files that are not empty.
  void save(const std::filesystem::path& folder) const;
};

SideFiles read_side_files(const std::filesystem::path& folder);

// Returns the file with a folder's chat template: chat_template.jinja, else tokenizer_config.json.
std::optional<std::filesystem::path> chat_template_file(const std::filesystem::path& folder);

struct SideSettings {
  // Tokens with their flags (id -1 if the file has none), in the order in which transformers adds them.
  std::vector<AddedToken> described;
  // Further special tokens. Each token is added unless an added token has the same text.
  std::vector<AddedToken> named;
  std::optional<std::string> bos, eos, pad, unk;  // texts of the tokens with these roles
  std::string chat_template;
  bool legacy = false;  // for SentencePiece models: whether text after an added token begins with a space
};

// Error(kInvalid) at the file's name, line and column for a file that is not a JSON object.
SideSettings parse_side_files(const SideFiles& files);

// Parses an added token of tokenizer.json or tokenizer_config.json; the id is -1.
AddedToken parse_added_token(const nlohmann::json& object);

}  // namespace primus
