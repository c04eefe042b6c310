#include "lm/tokenizer/huggingface/gpt2_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text/json_reader.h"
#include "lm/tokenizer/bpe/vocabulary.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus {

using nlohmann::json;

namespace {

constexpr const char* kVocab = "vocab.json";
constexpr const char* kMerges = "merges.txt";
constexpr const char* kEnd = "<|endoftext|>";

Vocabulary read_vocabulary(std::string_view text, const std::string& name) {
  JsonReader reader(text, name, {.python = true});
  Vocabulary vocabulary;
  std::string token;
  reader.begin_object();
  while (reader.next_key(token)) vocabulary.add(token, reader.read_int());
  reader.finish();
  try {
    vocabulary.finish();
  } catch (Error& error) {
    throw error.at(name);
  }
  return vocabulary;
}

// Returns the "merges" of a tokenizer.json.
std::string merges_as_json(std::string_view text, const std::string& name) {
  std::string out;
  std::string repaired;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1 && line.starts_with("#version")) continue;
    if (line.empty() && text.empty()) break;
    const auto fail = [&](const char* what) { throw invalid(what).at(fmt::format("{}:{}", name, number)); };
    const std::size_t blank = line.find(' ');
    if (blank == 0 || blank == std::string_view::npos || blank + 1 == line.size() ||
        line.find(' ', blank + 1) != std::string_view::npos) {
      fail("a merge must be two tokens separated by a space");
    }
    repaired.clear();
    unicode::valid_or_repaired(line, repaired);
    if (!repaired.empty()) fail("the merge is not UTF-8");
    out += fmt::format("{}[{},{}]", out.empty() ? "" : ",", json(line.substr(0, blank)).dump(),
                       json(line.substr(blank + 1)).dump());
  }
  return out;
}

// The way in which a tokenizer class of transformers splits text and ends documents.
enum class Style { kGpt2, kQwen2 };

struct NamedStyle {
  std::string_view name;  // name of the class without a trailing "Fast"
  Style style;
};
constexpr std::array<NamedStyle, 2> kClasses = {
    {{"GPT2Tokenizer", Style::kGpt2}, {"Qwen2Tokenizer", Style::kQwen2}}};
// Model types in config.json, used if no class is named.
constexpr std::array<NamedStyle, 7> kModelTypes = {{{"gpt2", Style::kGpt2},
                                                    {"gpt_neo", Style::kGpt2},
                                                    {"gptj", Style::kGpt2},
                                                    {"qwen2", Style::kQwen2},
                                                    {"qwen2_moe", Style::kQwen2},
                                                    {"qwen3", Style::kQwen2},
                                                    {"qwen3_moe", Style::kQwen2}}};

json parse_object(const Path& file) {
  if (!Env::posix().status(file)) return json::object();
  const std::string text = read_file(file), name = file.string();
  // Unlike json::parse, JsonReader reports the position of an error and limits the nesting.
  JsonReader reader(text, name, {.python = true});
  reader.skip();
  reader.finish();
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) throw invalid("it is not an object").at(name);
  return parsed;
}

template <std::size_t N>
Style style_named(const std::array<NamedStyle, N>& known, std::string_view name, std::string_view what,
                  const Path& folder) {
  for (const NamedStyle& named : known) {
    if (named.name == name) return named.style;
  }
  throw unsupported(
      fmt::format("the {} '{}' is not supported without a tokenizer.json", what, name),
      "create one with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)")
      .at(folder.string());
}

Style style_of(const json& config, const Path& folder) {
  const auto named = config.find("tokenizer_class");
  if (named != config.end() && named->is_string()) {
    std::string_view name = named->get_ref<const std::string&>();
    if (name.ends_with("Fast")) name.remove_suffix(4);
    return style_named(kClasses, name, "tokenizer class", folder);
  }
  const json model = parse_object(folder / "config.json");
  const auto type = model.find("model_type");
  if (type == model.end() || !type->is_string()) return Style::kGpt2;
  return style_named(kModelTypes, type->get_ref<const std::string&>(), "tokenizer of the model type", folder);
}

// Tokens in addition to the vocabulary.
class AddedTokens {
 public:
  explicit AddedTokens(const Vocabulary& vocabulary) : vocabulary_(vocabulary), next_(vocabulary.size()) {}

  // Adds the tokens of tokenizer_config.json with their ids.
  void add_described(const json& tokens, const std::string& name) {
    if (!tokens.is_object()) throw invalid("its added_tokens_decoder is not an object").at(name);
    for (const auto& [id, token] : tokens.items()) {
      const bool is_number =
          !id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == std::string::npos;
      if (!is_number || !token.is_object() || !token.contains("content") || !token["content"].is_string())
        throw invalid(fmt::format("its added token '{}' is not an id with a content", id)).at(name);
      put(token["content"].get<std::string>(), std::stoi(id), token);
    }
  }
  // Adds the tokens of added_tokens.json: text and id. Tokens with a role are special.
  void add_listed(const json& tokens, const std::vector<json>& roles, const std::string& name) {
    for (const auto& [text, id] : tokens.items()) {
      if (!id.is_number_integer()) throw invalid(fmt::format("the token '{}' has no id", text)).at(name);
      const bool special =
          std::ranges::any_of(roles, [&text](const json& role) { return text_of(role) == text; });
      put(text, id.get<std::int64_t>(), {{"special", special}});
    }
  }
  // Adds a special token, given as a string or an object with "content". A token that does not exist yet gets
  // the next id.
  void add_role(const json& role) {
    const std::string text = text_of(role);
    if (text.empty() || known(text)) return;
    json described = role.is_object() ? role : json::object();
    described["special"] = true;
    const auto id = vocabulary_.find(text);
    put(text, id ? *id : next_, described);
  }

  // Returns the tokens sorted by id, because the tokenizers library assigns ids in this order.
  json list() const {
    json sorted = tokens_;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const json& a, const json& b) { return a["id"] < b["id"]; });
    return sorted;
  }
  std::optional<std::int64_t> id_of(std::string_view text) const {
    for (const json& token : tokens_) {
      if (token["content"] == text) return token["id"].get<std::int64_t>();
    }
    return std::nullopt;
  }
  static std::string text_of(const json& role) {
    if (role.is_string()) return role.get<std::string>();
    if (!role.is_object()) return {};
    const auto content = role.find("content");
    return content != role.end() && content->is_string() ? content->get<std::string>() : std::string();
  }

 private:
  bool known(std::string_view text) const { return id_of(text).has_value(); }
  void put(const std::string& text, std::int64_t id, const json& described) {
    const auto flag = [&described](const char* name, bool otherwise) {
      const auto it = described.find(name);
      return it != described.end() && it->is_boolean() ? it->get<bool>() : otherwise;
    };
    const bool special = flag("special", false);
    tokens_.push_back({{"id", id},
                       {"content", text},
                       {"single_word", flag("single_word", false)},
                       {"lstrip", flag("lstrip", false)},
                       {"rstrip", flag("rstrip", false)},
                       {"normalized", flag("normalized", !special)},
                       {"special", special}});
    next_ = std::max(next_, id + 1);
  }

  const Vocabulary& vocabulary_;
  std::int64_t next_;
  json tokens_ = json::array();
};

bool is_set(const json& config, const char* key) {
  const auto it = config.find(key);
  return it != config.end() && it->is_boolean() && it->get<bool>();
}

json byte_level(bool add_prefix_space, bool trim_offsets, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", trim_offsets},
          {"use_regex", use_regex}};
}

json pre_tokenizer_of(Style style, bool add_prefix_space) {
  if (style == Style::kGpt2) return byte_level(add_prefix_space, true, true);
  constexpr const char* kQwen2 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  return {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", kQwen2}}}, {"behavior", "Isolated"}, {"invert", false}},
        byte_level(add_prefix_space, true, false)}}};
}

json post_processor_of(const json& config, const AddedTokens& added) {
  if (!is_set(config, "add_bos_token")) return byte_level(true, false, true);
  const std::string bos = config.contains("bos_token") ? AddedTokens::text_of(config["bos_token"]) : kEnd;
  const auto id = added.id_of(bos);
  if (!id) throw invalid(fmt::format("add_bos_token is set, but the vocabulary has no bos_token '{}'", bos));
  const auto special = [&bos] { return json{{"SpecialToken", {{"id", bos}, {"type_id", 0}}}}; };
  const auto sequence = [](const char* name) { return json{{"Sequence", {{"id", name}, {"type_id", 0}}}}; };
  return {{"type", "TemplateProcessing"},
          {"single", {special(), sequence("A")}},
          {"pair", {special(), sequence("A"), special(), sequence("B")}},
          {"special_tokens", {{bos, {{"id", bos}, {"ids", {*id}}, {"tokens", {bos}}}}}}};
}

// Returns the text of a tokenizer.json. `config`: tokenizer_config.json; may be empty.
std::string tokenizer_json(const std::string& vocab, const std::string& merges, Style style,
                           const json& config, const AddedTokens& added) {
  json whole = {{"version", "1.0"},
                {"truncation", nullptr},
                {"padding", nullptr},
                {"added_tokens", added.list()},
                {"normalizer", style == Style::kQwen2 ? json{{"type", "NFC"}} : json()},
                {"pre_tokenizer", pre_tokenizer_of(style, is_set(config, "add_prefix_space"))},
                {"post_processor", post_processor_of(config, added)},
                {"decoder", byte_level(true, true, true)}};
  std::string text = whole.dump();
  text.pop_back();  // the model is appended as text, because the model is nearly all of the file
  return text + R"(,"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":"",)" +
         R"("end_of_word_suffix":"","fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":)" +
         vocab + R"(,"merges":[)" + merges + "]}}\n";
}

constexpr std::array<const char*, 4> kRoles = {"bos_token", "eos_token", "unk_token", "pad_token"};

std::vector<json> roles_in(const json& config) {
  std::vector<json> roles;
  for (const char* key : kRoles) {
    if (config.contains(key)) roles.push_back(config[key]);
  }
  const auto more = config.find("additional_special_tokens");
  if (more != config.end() && more->is_array()) roles.insert(roles.end(), more->begin(), more->end());
  return roles;
}

}  // namespace

HuggingFaceFiles read_gpt2_files(const Path& vocab_file, const Path& merge_file) {
  const std::string vocab = read_file(vocab_file), merges = read_file(merge_file);
  const Vocabulary vocabulary = read_vocabulary(vocab, vocab_file.string());
  AddedTokens added(vocabulary);
  added.add_role(kEnd);
  HuggingFaceFiles files;
  files.path = vocab_file.string();
  files.tokenizer_json =
      tokenizer_json(vocab, merges_as_json(merges, merge_file.string()), Style::kGpt2, json::object(), added);
  return files;
}

bool has_gpt2_files(const Path& folder) {
  return Env::posix().status(folder / kVocab).has_value() &&
         Env::posix().status(folder / kMerges).has_value();
}

HuggingFaceFiles read_gpt2_folder(const Path& folder) {
  const std::string vocab = read_file(folder / kVocab), merges = read_file(folder / kMerges);
  const Vocabulary vocabulary = read_vocabulary(vocab, (folder / kVocab).string());
  const Path config_file = folder / "tokenizer_config.json", listed_file = folder / "added_tokens.json";
  const json config = parse_object(config_file);
  const Style style = style_of(config, folder);
  std::vector<json> roles = roles_in(parse_object(folder / "special_tokens_map.json"));
  for (const json& role : roles_in(config)) roles.push_back(role);
  AddedTokens added(vocabulary);
  if (const auto described = config.find("added_tokens_decoder"); described != config.end()) {
    added.add_described(*described, config_file.string());
  } else {
    added.add_listed(parse_object(listed_file), roles, listed_file.string());
  }
  for (const json& role : roles) added.add_role(role);
  added.add_role(kEnd);  // the default of both classes for roles that are not set
  HuggingFaceFiles files = read_huggingface_files(folder / kVocab, {});
  files.tokenizer_json =
      tokenizer_json(vocab, merges_as_json(merges, (folder / kMerges).string()), style, config, added);
  return files;
}

}  // namespace primus
