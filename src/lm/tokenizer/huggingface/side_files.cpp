#include "lm/tokenizer/huggingface/side_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
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
constexpr const char* kTemplateJson = "chat_template.json";
constexpr const char* kAdditional = "additional_chat_templates";

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

// Returns the templates of the key chat_template: a text, or a list of {"name", "template"}.
std::vector<ChatTemplates::Named> templates_of(const json& config) {
  std::vector<ChatTemplates::Named> found;
  const auto it = config.find("chat_template");
  if (it == config.end()) return found;
  if (it->is_string()) found.push_back({"default", it->get<std::string>()});
  if (!it->is_array()) return found;
  for (const json& named : *it) {
    if (!named.is_object() || !named.value("name", json()).is_string()) continue;
    std::string name = get_string(named, "name");
    std::erase_if(found, [&](const ChatTemplates::Named& one) { return one.name == name; });
    found.push_back({std::move(name), get_string(named, "template")});
  }
  return found;
}

bool has_default(const std::vector<ChatTemplates::Named>& templates) {
  return std::ranges::find(templates, "default", &ChatTemplates::Named::name) != templates.end();
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

void SideFiles::save(const std::filesystem::path& folder, const std::string& default_config) const {
  const auto put = [&folder](const char* name, const std::string& content) {
    if (!content.empty()) write_file_atomic(folder / name, content);
  };
  std::string config = tokenizer_config_json.empty() ? default_config : tokenizer_config_json;
  std::string jinja = chat_template_jinja;
  const ChatTemplates templates = parse_side_files(*this).chat_templates;
  if (!additional_templates.empty()) {
    json parsed = parse_object(config, (read_from / kConfig).string());
    json& list = parsed["chat_template"] = json::array();
    for (const ChatTemplates::Named& one : templates.all)
      list.push_back({{"name", one.name}, {"template", one.source}});
    config = parsed.dump(2) + "\n";
    jinja.clear();
  } else if (templates.file == (read_from / kTemplateJson).string()) {
    jinja = templates.source();
  }
  put(kConfig, config);
  put(kMap, special_tokens_map_json);
  put(kAdded, added_tokens_json);
  put(kTemplate, jinja);
  put(kTemplateJson, chat_template_json);
}

SideFiles read_side_files(const std::filesystem::path& folder) {
  const auto text_of = [&folder](const char* name) {
    return Env::posix().status(folder / name) ? read_file(folder / name) : std::string();
  };
  SideFiles files{text_of(kConfig),
                  text_of(kMap),
                  text_of(kAdded),
                  text_of(kTemplate),
                  folder,
                  text_of(kTemplateJson),
                  {}};
  const auto check = [](std::size_t size, const std::filesystem::path& file) {
    constexpr std::size_t kLongestTemplate = 1 << 20;
    if (size <= kLongestTemplate) return;
    throw invalid("the chat template is longer than 1 MiB",
                  "published templates have a few kilobytes: replace the file")
        .at(file.string());
  };
  check(files.chat_template_jinja.size(), folder / kTemplate);
  const auto additional = Env::posix().status(folder / kAdditional);
  if (!additional || additional->type != FileStatus::Type::kFolder) return files;
  constexpr std::size_t kMost = 64;
  for (const std::string& name : Env::posix().list(folder / kAdditional)) {
    const std::filesystem::path file = folder / kAdditional / name;
    if (file.extension() != ".jinja") continue;
    if (files.additional_templates.size() == kMost)
      throw invalid(fmt::format("there are more than {} templates", kMost), "remove those that are not used")
          .at((folder / kAdditional).string());
    files.additional_templates.push_back({file.stem().string(), read_file(file)});
    check(files.additional_templates.back().source.size(), file);
  }
  std::ranges::sort(files.additional_templates, {}, &ChatTemplates::Named::name);
  return files;
}

std::optional<std::filesystem::path> chat_template_file(const std::filesystem::path& folder) {
  for (const char* name : {kTemplate, kConfig, kTemplateJson}) {
    if (Env::posix().status(folder / name)) return folder / name;
  }
  return std::nullopt;
}

namespace {

ChatTemplates find_templates(const SideFiles& files, const json& config, const json& processor) {
  ChatTemplates found;
  const auto path_of = [&files](const char* name) { return (files.read_from / name).string(); };
  if (!files.chat_template_jinja.empty()) {
    found.all.push_back({"default", files.chat_template_jinja});
    found.file = path_of(kTemplate);
  }
  std::ranges::copy_if(files.additional_templates, std::back_inserter(found.all),
                       [&](const ChatTemplates::Named& one) { return found.source(one.name).empty(); });
  if (found.all.empty()) {
    found.all = templates_of(config);
    if (has_default(found.all)) found.file = path_of(kConfig);
  }
  if (found.all.empty()) {
    found.all = templates_of(processor);
    if (has_default(found.all)) found.file = path_of(kTemplateJson);
  }
  return found;
}

}  // namespace

SideSettings parse_side_files(const SideFiles& files) {
  SideSettings settings;
  const auto path_of = [&files](const char* name) { return (files.read_from / name).string(); };
  json config = parse_object(files.tokenizer_config_json, path_of(kConfig));
  const json map = parse_object(files.special_tokens_map_json, path_of(kMap));
  const json added = parse_object(files.added_tokens_json, path_of(kAdded));
  refuse_other_roles(config, path_of(kConfig));
  refuse_other_roles(map, path_of(kMap));
  settings.chat_templates =
      find_templates(files, config, parse_object(files.chat_template_json, path_of(kTemplateJson)));
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
  for (const char* key : kRoles) {
    if (std::optional<std::string> text = role(key)) settings.chat_templates.set_token(key, *std::move(text));
  }
  // Some models name further tokens, such as "image_token".
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    if (std::string content = special_token(value).content; !content.empty())
      settings.chat_templates.set_token(key, std::move(content));
  }
  return settings;
}

}  // namespace primus
