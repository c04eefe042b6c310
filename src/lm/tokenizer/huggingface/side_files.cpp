#include "lm/tokenizer/huggingface/side_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json_reader.h"
#include "lm/tokenizer/huggingface/parts.h"

namespace primus {

using huggingface::get_bool;
using huggingface::get_string;
using nlohmann::json;

namespace {

constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kMap = "special_tokens_map.json";
constexpr const char* kAdded = "added_tokens.json";
constexpr const char* kTemplate = "chat_template.jinja";

json parse_object(const std::string& text, const std::string& name) {
  if (text.empty()) return json::object();
  // Unlike json::parse, JsonReader reports the position of an error and limits the nesting.
  JsonReader reader(text, name, {.python = true});
  reader.skip();
  reader.finish();
  if (text.size() > 2 << 20) throw unsupported("a file of more than 2 MB is not supported").at(name);
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) throw invalid("it is not an object").at(name);
  return parsed;
}

// Parses a special token, a string or an object with "content". The content is empty for a value of another
// type.
AddedToken special_token(const json& value) {
  AddedToken token;
  token.id = -1;
  if (value.is_string()) {
    token.content = value.get<std::string>();
  } else if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    token = parse_added_token(value);
  }
  token.special = true;
  return token;
}

// Returns the tokens of "added_tokens_decoder", {"32000": {"content": ...}}, by id.
std::vector<AddedToken> described_tokens(const json& object, const std::string& file) {
  std::vector<AddedToken> tokens;
  if (!object.is_object()) throw invalid("its added_tokens_decoder is not an object").at(file);
  for (const auto& [id, token] : object.items()) {
    const bool is_number =
        !id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || !token.is_object() || !token.contains("content") || !token["content"].is_string())
      throw invalid(fmt::format("its added token '{}' is not an id with a content", id)).at(file);
    tokens.push_back(parse_added_token(token));
    tokens.back().id = std::stoi(id);
  }
  std::ranges::sort(tokens, {}, &AddedToken::id);
  return tokens;
}

// Returns the tokens of {"<|im_start|>": 32000}, by id. Tokens that are also in `named` are special.
std::vector<AddedToken> listed_tokens(const json& object, const std::vector<AddedToken>& named,
                                      const std::string& file) {
  std::vector<AddedToken> tokens;
  for (const auto& [text, id] : object.items()) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
      throw invalid(fmt::format("the token '{}' has no id", text)).at(file);
    AddedToken token;
    token.id = id.get<std::int32_t>();
    token.content = text;
    token.special = std::ranges::any_of(named, [&](const AddedToken& one) { return one.content == text; });
    token.normalized = !token.special;
    tokens.push_back(std::move(token));
  }
  std::ranges::sort(tokens, {}, &AddedToken::id);
  return tokens;
}

constexpr std::array<const char*, 7> kRoles = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};

// Refuses values that transformers refuses as well.
void refuse_other_roles(const json& config, const std::string& file) {
  for (const char* role : kRoles) {
    const auto value = config.find(role);
    if (value == config.end() || value->is_null() || value->is_string() || value->is_object()) continue;
    throw invalid(
        fmt::format("its {} is {}, which is not the text of a token", role, value->dump().substr(0, 80)),
        "write the token's text; its id belongs in config.json")
        .at(file);
  }
}

std::vector<AddedToken> named_tokens(const json& config) {
  std::vector<AddedToken> named;
  const auto add = [&named](const json& value) {
    AddedToken token = special_token(value);
    if (!token.content.empty()) named.push_back(std::move(token));
  };
  for (const char* role : kRoles) {
    if (config.contains(role)) add(config[role]);
  }
  // Adds tokens that some models name in additional keys, such as "image_token".
  for (const auto& [key, value] : config.items()) {
    const bool is_role = std::ranges::any_of(kRoles, [&key](const char* role) { return key == role; });
    if (!is_role && key.ends_with("_token")) add(value);
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto list = config.find(key);
    if (list == config.end() || !list->is_structured()) continue;
    for (const json& value : *list) add(value);
  }
  return named;
}

std::string chat_template_of(const json& config) {
  const auto it = config.find("chat_template");
  if (it == config.end()) return {};
  if (it->is_string()) return it->get<std::string>();
  if (!it->is_array()) return {};
  // In a list of named templates, the template named "default" is used.
  for (const json& named : *it) {
    if (named.is_object() && named.value("name", json()) == "default") return get_string(named, "template");
  }
  return {};
}

}  // namespace

AddedToken parse_added_token(const json& object) {
  AddedToken token;
  token.id = -1;
  token.content = get_string(object, "content");
  token.special = get_bool(object, "special", false);
  token.normalized = get_bool(object, "normalized", !token.special);
  token.single_word = get_bool(object, "single_word", false);
  token.lstrip = get_bool(object, "lstrip", false);
  token.rstrip = get_bool(object, "rstrip", false);
  return token;
}

void SideFiles::save(const std::filesystem::path& folder) const {
  const auto put = [&folder](const char* name, const std::string& content) {
    if (!content.empty()) write_file_atomic(folder / name, content);
  };
  put(kConfig, tokenizer_config_json);
  put(kMap, special_tokens_map_json);
  put(kAdded, added_tokens_json);
  put(kTemplate, chat_template_jinja);
}

SideFiles read_side_files(const std::filesystem::path& folder) {
  const auto text_of = [&folder](const char* name) {
    return Env::posix().status(folder / name) ? read_file(folder / name) : std::string();
  };
  SideFiles files{text_of(kConfig), text_of(kMap), text_of(kAdded), text_of(kTemplate), folder};
  constexpr std::size_t kLongestTemplate = 1 << 20;
  if (files.chat_template_jinja.size() > kLongestTemplate) {
    throw invalid("the chat template is longer than 1 MiB",
                  "published templates have a few kilobytes: replace the file")
        .at((folder / kTemplate).string());
  }
  return files;
}

std::optional<std::filesystem::path> chat_template_file(const std::filesystem::path& folder) {
  for (const char* name : {kTemplate, kConfig}) {
    if (Env::posix().status(folder / name)) return folder / name;
  }
  return std::nullopt;
}

SideSettings parse_side_files(const SideFiles& files) {
  SideSettings settings;
  const auto path_of = [&files](const char* name) { return (files.read_from / name).string(); };
  json config = parse_object(files.tokenizer_config_json, path_of(kConfig));
  const json map = parse_object(files.special_tokens_map_json, path_of(kMap));
  const json added = parse_object(files.added_tokens_json, path_of(kAdded));
  refuse_other_roles(config, path_of(kConfig));
  refuse_other_roles(map, path_of(kMap));
  settings.chat_template =
      files.chat_template_jinja.empty() ? chat_template_of(config) : files.chat_template_jinja;
  settings.legacy = get_bool(config, "legacy", false);
  const auto described = config.find("added_tokens_decoder");
  if (described != config.end()) settings.described = described_tokens(*described, path_of(kConfig));
  // Without added_tokens_decoder, the older files are used.
  if (described == config.end()) config.update(map);
  settings.named = named_tokens(config);
  if (described == config.end()) settings.described = listed_tokens(added, settings.named, path_of(kAdded));
  const auto role = [&](const char* key) -> std::optional<std::string> {
    for (const json* object : {&std::as_const(config), &map}) {
      if (!object->contains(key)) continue;
      if (std::string content = special_token(object->at(key)).content; !content.empty()) return content;
    }
    return std::nullopt;
  };
  settings.bos = role("bos_token");
  settings.eos = role("eos_token");
  settings.pad = role("pad_token");
  settings.unk = role("unk_token");
  return settings;
}

}  // namespace primus
