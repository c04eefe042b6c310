#include "lm/tokenizer/huggingface/huggingface.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json_reader.h"
#include "lm/tokenizer/bpe/bpe_model.h"
#include "lm/tokenizer/huggingface/added_vocabulary.h"
#include "lm/tokenizer/huggingface/parts.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus {

using huggingface::get_bool;
using huggingface::get_string;
using nlohmann::json;

namespace {

// The content of tokenizer.json, with the model already built.
struct Parsed {
  json normalizer, pre_tokenizer, post_processor, decoder;
  std::vector<AddedToken> added_tokens;
  std::vector<std::string> notes;
};

// Parses the JSON of a small stage. A JSON tree needs many times the memory of its text, so the model is not
// parsed in this way.
json parse_small(std::string_view text) {
  if (text.size() > 2 << 20)
    throw unsupported("a stage described by more than 2 MB of JSON is not supported");
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

AddedToken parse_added_token_with_id(const json& object) {
  const auto id = object.find("id");
  if (id == object.end() || !id->is_number_integer() || *id < 0 || *id > INT32_MAX) {
    throw invalid("an added token without an id");
  }
  AddedToken token = parse_added_token(object);
  token.id = id->get<std::int32_t>();
  return token;
}

// The "model" object, which is nearly all of the file and is parsed entry by entry.
struct ParsedModel {
  std::string type;
  BpeOptions options;
  Vocabulary vocabulary;
  BpeModel::MergeList merges;
};

void read_merges(JsonReader& reader, BpeModel::MergeList& merges) {
  reader.begin_array();
  std::string text;
  while (reader.next_element()) {
    auto& [left, right] = merges.emplace_back();
    if (reader.peek() == JsonReader::Kind::kString) {
      reader.read_string(text);
      const std::size_t blank = text.find(' ');
      if (blank == std::string::npos || text.find(' ', blank + 1) != std::string::npos) {
        reader.fail("a merge is not two tokens separated by a space");
      }
      left = text.substr(0, blank);
      right = text.substr(blank + 1);
      continue;
    }
    reader.begin_array();
    if (!reader.next_element()) reader.fail("a merge without tokens");
    reader.read_string(left);
    if (!reader.next_element()) reader.fail("a merge with one token");
    reader.read_string(right);
    if (reader.next_element()) reader.fail("a merge with more than two tokens");
  }
}

ParsedModel read_model(JsonReader& reader) {
  ParsedModel model;
  reader.begin_object();
  std::string key, text;
  const auto optional_string = [&] { return reader.read_null() ? std::string() : reader.read_string(); };
  while (reader.next_key(key)) {
    if (key == "type") {
      model.type = reader.read_string();
    } else if (key == "vocab") {
      if (reader.peek() != JsonReader::Kind::kObject)
        throw unsupported("a model with scores (Unigram) is not supported");
      reader.begin_object();
      while (reader.next_key(text)) model.vocabulary.add(text, reader.read_int());
    } else if (key == "merges") {
      read_merges(reader, model.merges);
    } else if (key == "unk_token") {
      model.options.unk_token = optional_string();
    } else if (key == "continuing_subword_prefix") {
      model.options.continuing_subword_prefix = optional_string();
    } else if (key == "end_of_word_suffix") {
      model.options.end_of_word_suffix = optional_string();
    } else if (key == "fuse_unk") {
      model.options.fuse_unk = !reader.read_null() && reader.read_bool();
    } else if (key == "byte_fallback") {
      model.options.byte_fallback = !reader.read_null() && reader.read_bool();
    } else if (key == "ignore_merges") {
      model.options.ignore_merges = !reader.read_null() && reader.read_bool();
    } else if (key == "dropout") {
      if (!reader.read_null() && reader.read_double() != 0) throw unsupported("BPE dropout is not supported");
    } else {
      throw unsupported(fmt::format("the model's setting '{}' is not supported", key));
    }
  }
  // Older files have no model type; if they have merges, they are BPE.
  if (model.type.empty() && !model.merges.empty()) model.type = "BPE";
  if (model.type != "BPE") throw unsupported(fmt::format("the model '{}' is not supported", model.type));
  model.vocabulary.finish();
  return model;
}

class HuggingFaceTokenizer final : public Tokenizer {
 public:
  HuggingFaceTokenizer(HuggingFaceFiles files, std::string type)
      : files_(std::move(files)), type_(std::move(type)) {
    Parsed parsed;
    ParsedModel model;
    JsonReader reader(files_.tokenizer_json, files_.path, {.python = true});
    read_file_parts(reader, parsed, model);
    const SideSettings settings = parse_side_files(files_);
    try {
      build(std::move(parsed), std::move(model), settings);
    } catch (Error& error) {
      if (error.location().empty()) error.at(files_.path);
      throw;
    }
    take_roles(settings);
  }

  std::string_view name() const override { return type_; }
  std::int32_t vocab_size() const override { return vocab_size_; }
  const SpecialIds& special_ids() const override { return special_ids_; }

  std::string token_text(std::int32_t id) const override {
    check_id(id);
    return std::string(text_of(id));
  }
  std::optional<std::int32_t> token_id(std::string_view token) const override {
    if (const auto id = added_->find(token)) return id;
    return model_->vocabulary().find(token);
  }
  bool is_special(std::int32_t id) const override {
    const AddedToken* token = added_->token(id);
    return token != nullptr && token->special;
  }

  std::uint64_t fingerprint() const override {
    const std::string& text = files_.tokenizer_json;
    const std::uint64_t of_file = XXH3_64bits_withSeed(
        text.data(), text.size(), static_cast<std::uint64_t>(special_ids_.eod.value_or(-1)));
    if (added_elsewhere_.empty()) return of_file;
    return XXH3_64bits_withSeed(added_elsewhere_.data(), added_elsewhere_.size(), of_file);
  }

  void save(const std::filesystem::path& folder) const override {
    make_folders(folder);
    write_file_atomic(folder / "tokenizer.json", files_.tokenizer_json);
    files_.save(folder, default_config());
  }

 protected:
  void encode_text(std::string_view text, std::vector<std::int32_t>& ids) const override {
    std::string repaired;
    text = unicode::valid_or_repaired(text, repaired);
    const auto scratch = scratches_.borrow();
    TextBudget budget(text.size());
    try {
      raw_matcher_.split(text, [&](std::string_view part, std::int32_t id) {
        if (id >= 0) {
          ids.push_back(id);
        } else {
          encode_part(part, part.data() == text.data(), ids, budget, *scratch);
        }
      });
    } catch (const Error& error) {
      // The error appears while a text is read, but the cause is in the tokenizer's file. The message
      // therefore names the tokenizer's file.
      throw Error(error.kind(), fmt::format("the tokenizer '{}': {}", files_.path, error.what()),
                  error.hint());
    }
  }

  std::unique_ptr<Decoding> new_decoding() const override {
    return decoder_->start([this](std::int32_t id) { return text_of(id); });
  }

 private:
  void read_file_parts(JsonReader& reader, Parsed& parsed, ParsedModel& model) {
    reader.begin_object();
    std::string key;
    bool has_model = false;
    while (reader.next_key(key)) {
      if (key == "model") {
        try {
          model = read_model(reader);
        } catch (Error& error) {
          if (error.location().empty()) error.at(files_.path);
          throw;
        }
        has_model = true;
        continue;
      }
      if (key == "added_tokens") {
        reader.begin_array();
        while (reader.next_element())
          parsed.added_tokens.push_back(parse_added_token_with_id(parse_small(reader.skip())));
        continue;
      }
      const std::string_view value = reader.skip();
      if (key == "normalizer") {
        parsed.normalizer = parse_small(value);
      } else if (key == "pre_tokenizer") {
        parsed.pre_tokenizer = parse_small(value);
      } else if (key == "post_processor") {
        parsed.post_processor = parse_small(value);
      } else if (key == "decoder") {
        parsed.decoder = parse_small(value);
      } else if ((key == "truncation" || key == "padding") && value != "null") {
        parsed.notes.push_back(fmt::format("{}: its {} settings are ignored", files_.path, key));
      }
    }
    reader.finish();
    if (!has_model) throw invalid("it has no \"model\"").at(files_.path);
  }

  void build(Parsed parsed, ParsedModel model, const SideSettings& settings) {
    normalizer_ = huggingface::parse_normalizer(parsed.normalizer);
    pre_tokenizer_ = huggingface::parse_pre_tokenizer(parsed.pre_tokenizer);
    frame_ = huggingface::parse_post_processor(parsed.post_processor);
    decoder_ = huggingface::parse_decoder(parsed.decoder, files_.path);
    notes_ = std::move(parsed.notes);
    model.options.byte_level = pre_tokenizer_.byte_level;
    model_.emplace(std::move(model.options), std::move(model.vocabulary), model.merges);
    vocab_size_ = model_->vocabulary().size();
    add_tokens(std::move(parsed.added_tokens), settings);
    raw_matcher_ = matcher(false);
    normalized_matcher_ = matcher(true);
    for (const auto& ids : {frame_.before, frame_.after}) {
      for (const std::int32_t id : ids) {
        if (id >= vocab_size_) throw invalid(fmt::format("the post-processor adds the unknown id {}", id));
      }
    }
  }

  void add_tokens(std::vector<AddedToken> in_file, const SideSettings& settings) {
    added_.emplace([this](std::string_view text) { return model_->vocabulary().find(text); },
                   model_->vocabulary().count());
    for (AddedToken& token : in_file) added_->add(std::move(token));
    if (std::string remark = added_->remark(); !remark.empty())
      notes_.push_back(fmt::format("{}: {}", files_.path, remark));
    const auto add_elsewhere = [this](const AddedToken& token) {
      const auto id = added_->find(token.content);
      const AddedToken* there = id ? added_->token(*id) : nullptr;
      if (there != nullptr && there->same_flags(token)) return;
      added_->add(token);
      added_elsewhere_ += fmt::format("{}:{} {}{}{}{}{}", token.content.size(), token.content, token.special,
                                      token.normalized, token.single_word, token.lstrip, token.rstrip);
    };
    for (const AddedToken& token : settings.described) add_elsewhere(token);
    for (const AddedToken& token : settings.named) {
      if (!added_->find(token.content)) add_elsewhere(token);
    }
    for (const auto& [id, token] : added_->tokens()) {
      if (id < model_->vocabulary().size()) {
        const std::string_view text = model_->vocabulary().text(id);
        if (!text.empty() && text != token.content)
          throw invalid(
              fmt::format("the id {} is both '{}' and the added token '{}'", id, text, token.content));
      }
      vocab_size_ = std::max(vocab_size_, id + 1);
    }
  }

  AddedTokenMatcher matcher(bool normalized) const {
    std::vector<AddedToken> tokens;
    std::vector<std::string> contents;
    std::size_t bytes = 0;
    for (const auto& [id, token] : added_->tokens()) bytes += token.content.size();
    TextBudget budget(bytes);
    for (const auto& [id, token] : added_->tokens()) {
      if (token.normalized != normalized) continue;
      tokens.push_back(token);
      contents.push_back(token.content);
      if (normalized && normalizer_ != nullptr) {
        normalizer_->apply(contents.back(), budget);
        budget.take_output(contents.back().size(), "the normalizer");
      }
      if (std::max(token.content.size(), contents.back().size()) > AddedTokenMatcher::kMaxTokenBytes) {
        throw unsupported(fmt::format("the added token {} has more than {} bytes, which is not supported",
                                      token.id, AddedTokenMatcher::kMaxTokenBytes));
      }
    }
    return AddedTokenMatcher(std::move(tokens), contents);
  }

  void encode_part(std::string_view part, bool at_start, std::vector<std::int32_t>& ids, TextBudget& budget,
                   BpeModel::Scratch& scratch) const {
    std::string normalized;
    if (normalizer_ != nullptr && normalizer_->may_change(part)) {
      normalized = part;
      normalizer_->apply(normalized, budget);
      budget.take_output(normalized.size(), "the normalizer");
      part = normalized;
    }
    normalized_matcher_.split(part, [&](std::string_view text, std::int32_t id) {
      if (id >= 0) {
        ids.push_back(id);
      } else {
        cut({text, at_start && text.data() == part.data()}, 0, ids, budget, scratch);
      }
    });
  }

  // Runs the pre-tokenizer's steps from `step` on, then the model. The recursion depth is at most kMaxSteps.
  void cut(Piece piece, std::size_t step, std::vector<std::int32_t>& ids, TextBudget& budget,
           BpeModel::Scratch& scratch) const {
    if (step == pre_tokenizer_.steps.size()) return model_->encode(piece.text, ids, scratch);
    pre_tokenizer_.steps[step]->split(piece, budget,
                                      [&](Piece part) { cut(part, step + 1, ids, budget, scratch); });
  }

  std::string_view text_of(std::int32_t id) const {
    if (const AddedToken* token = added_->token(id)) return token->content;
    return id < model_->vocabulary().size() ? model_->vocabulary().text(id) : std::string_view();
  }

  // Sets bos, eos, pad, unk and the chat template as transformers does. If transformers' files are missing,
  // finds these tokens by their usual names.
  void take_roles(const SideSettings& settings) {
    const auto id_of = [this](const std::optional<std::string>& text) {
      return text ? token_id(*text) : std::nullopt;
    };
    special_ids_.bos = id_of(settings.bos);
    special_ids_.eos = id_of(settings.eos);
    special_ids_.pad = id_of(settings.pad);
    special_ids_.unk = id_of(settings.unk);
    guess_role({"<|begin_of_text|>", "<s>", "<|begin▁of▁sentence|>", "<|startoftext|>", "[BOS]"},
               special_ids_.bos);
    guess_role({"<|end_of_text|>", "</s>", "<|endoftext|>", "<|end▁of▁sentence|>", "<|return|>", "[EOS]"},
               special_ids_.eos);
    guess_role({"<pad>", "[PAD]", "<|finetune_right_pad_id|>"}, special_ids_.pad);
    special_ids_.eod = special_ids_.eos;
    ChatTemplates templates = settings.chat_templates;
    // save() writes these tokens to a new tokenizer_config.json, from which transformers reads them.
    if (files_.tokenizer_config_json.empty()) {
      for (const auto& [key, id] : roles_of(special_ids_))
        if (id) templates.set_token(key, std::string(text_of(*id)));
    }
    set_chat_templates(std::move(templates));
  }

  void guess_role(std::initializer_list<const char*> names, std::optional<std::int32_t>& role) const {
    for (const char* name : names) {
      if (role) return;
      const auto id = added_->find(name);
      if (id && is_special(*id)) role = id;
    }
  }

  std::string default_config() const {
    json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
    for (const auto& [key, id] : roles_of(special_ids_)) {
      if (id) config[key] = text_of(*id);
    }
    return config.dump(2) + "\n";
  }

  HuggingFaceFiles files_;
  std::string type_;
  std::unique_ptr<huggingface::Normalizer> normalizer_;
  huggingface::PreTokenizerStage pre_tokenizer_;
  std::unique_ptr<huggingface::Decoder> decoder_;
  std::optional<BpeModel> model_;
  std::optional<AddedVocabulary> added_;
  std::string added_elsewhere_;  // additions from the files next to tokenizer.json, for the fingerprint
  AddedTokenMatcher raw_matcher_, normalized_matcher_;
  SpecialIds special_ids_;
  std::int32_t vocab_size_ = 0;
  mutable Pool<BpeModel::Scratch> scratches_;
};

}  // namespace

HuggingFaceFiles read_huggingface_files(const std::filesystem::path& path, std::string tokenizer_json) {
  HuggingFaceFiles files;
  files.path = path.string();
  files.tokenizer_json = std::move(tokenizer_json);
  static_cast<SideFiles&>(files) = read_side_files(path.parent_path());
  return files;
}

std::unique_ptr<Tokenizer> make_huggingface_tokenizer(HuggingFaceFiles files, std::string type) {
  return std::make_unique<HuggingFaceTokenizer>(std::move(files), std::move(type));
}

}  // namespace primus
