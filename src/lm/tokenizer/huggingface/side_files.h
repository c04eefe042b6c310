// The small files next to a tokenizer.json or tokenizer.model, interpreted as in transformers.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lm/tokenizer/huggingface/added_tokens.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

// Contents of the files; the content of a missing file is empty.
struct SideFiles {
  std::string tokenizer_config_json;
  std::string special_tokens_map_json;
  std::string added_tokens_json;
  std::string chat_template_jinja;
  std::filesystem::path read_from = {};  // path of the folder, for messages
  std::string chat_template_json = {};
  // Names and contents of additional_chat_templates/NAME.jinja, by name.
  std::vector<ChatTemplates::Named> additional_templates = {};

  // Writes the files that are not empty, from which transformers reads the same tokenizer and templates.
  // `default_config` is written as tokenizer_config.json if `tokenizer_config_json` is empty. Additional
  // templates become a list in tokenizer_config.json, because a checkpoint has no folders; a template of
  // chat_template.json, which tokenizers of transformers do not read, is also written as chat_template.jinja.
  void save(const std::filesystem::path& folder, const std::string& default_config) const;
};

SideFiles read_side_files(const std::filesystem::path& folder);

// Returns the file that contains the folder's chat template: chat_template.jinja, or else
// tokenizer_config.json or chat_template.json. Returns nullopt if none of them exists.
std::optional<std::filesystem::path> chat_template_file(const std::filesystem::path& folder);

struct SideSettings {
  // Tokens with their flags, in the order in which transformers adds them. The id is -1 if the file has none.
  std::vector<AddedToken> described;
  // Further special tokens. A token is added only if no added token has the same text.
  std::vector<AddedToken> named;
  std::optional<std::string> bos, eos, pad, unk;  // texts of the BOS, EOS, padding and unknown tokens
  ChatTemplates chat_templates;
  bool legacy = false;  // for SentencePiece models: whether a space is inserted before text that follows an
                        // added token
};

// Parses the files. Templates are those that transformers uses: files with templates replace those of
// tokenizer_config.json. Throws Error(kInvalid), with file name, line and column, for a file that is not a
// JSON object.
SideSettings parse_side_files(const SideFiles& files);

// Returns the keys of tokenizer_config.json for tokens with a special role, with the tokens' ids.
inline std::array<std::pair<const char*, std::optional<std::int32_t>>, 4> roles_of(const SpecialIds& ids) {
  return {{{"bos_token", ids.bos}, {"eos_token", ids.eos}, {"pad_token", ids.pad}, {"unk_token", ids.unk}}};
}

// Parses an added token of tokenizer.json or tokenizer_config.json; the id is -1.
AddedToken parse_added_token(const nlohmann::json& object);

}  // namespace primus
