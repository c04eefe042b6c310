// The small files that lie beside a tokenizer.json or tokenizer.model, read as transformers reads them.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lm/tokenizer/huggingface/added_tokens.h"

namespace primus {

// Their texts; empty where there is none.
struct SideFiles {
  std::string tokenizer_config_json;
  std::string special_tokens_map_json;
  std::string added_tokens_json;
  std::string chat_template_jinja;
  std::filesystem::path read_from = {};  // the folder, for errors

  // Writes those that are not empty.
  void save(const std::filesystem::path& folder) const;
};

SideFiles read_side_files(const std::filesystem::path& folder);

// The file with the chat template of a folder that has one: chat_template.jinja, else tokenizer_config.json.
std::optional<std::filesystem::path> chat_template_file(const std::filesystem::path& folder);

struct SideSettings {
  // Tokens with their flags (id -1 where none is written), in the order in which transformers adds them.
  std::vector<AddedToken> described;
  // Further special tokens: added where no added token has their text.
  std::vector<AddedToken> named;
  std::optional<std::string> bos, eos, pad, unk;  // texts of the tokens with a role
  std::string chat_template;
  bool legacy = false;  // of SentencePiece models: every stretch between added tokens begins with a blank
};

// Error(kInvalid) at the file's name, line and column for a file that is not an object of JSON.
SideSettings parse_side_files(const SideFiles& files);

// An added token as tokenizer.json and tokenizer_config.json write it; the id is -1.
AddedToken parse_added_token(const nlohmann::json& object);

}  // namespace primus
