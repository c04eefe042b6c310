#include "lm/tokenizer/tiktoken/tiktoken.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json_reader.h"
#include "lm/tokenizer/bpe/bpe_model.h"
#include "lm/tokenizer/bpe/byte_level.h"
#include "lm/tokenizer/decoding.h"
#include "lm/tokenizer/huggingface/added_tokens.h"
#include "lm/tokenizer/huggingface/side_files.h"
#include "lm/tokenizer/text/pretokenize.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus {

namespace {

constexpr std::int32_t kMegatronSpecials = 1000;
constexpr std::size_t kMegatronVocabulary = 131072;

struct Special {
  std::string text;
  std::int32_t id;
};

// The vocabulary that a file contains.
struct Ranks {
  std::vector<std::pair<std::string, std::int64_t>> tokens;  // bytes and id of each token
  std::vector<Special> specials;
  std::string_view pattern;
  std::optional<std::string> bos, eos, pad, unk;
  bool frames_with_bos = false;
  std::string note;
};

std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count));
    bits &= (1u << count) - 1;
  }
  if (count >= 6 || bits != 0) return std::nullopt;
  return bytes;
}

// Parses "IQ== 0"; returns false if the line does not have this form.
bool parse_line(std::string_view line, std::pair<std::string, std::int64_t>& token) {
  const std::size_t blank = line.find(' ');
  if (blank == std::string_view::npos || blank == 0) return false;
  auto bytes = decode_base64(line.substr(0, blank));
  const std::string_view number = line.substr(blank + 1);
  const auto result = std::from_chars(number.data(), number.data() + number.size(), token.second);
  if (!bytes || bytes->empty() || result.ec != std::errc() || result.ptr != number.data() + number.size())
    return false;
  token.first = std::move(*bytes);
  return token.second >= 0;
}

// Sets the special tokens and the expression of a rank file, which depend on its number of ranks.
void recognise(Ranks& ranks) {
  const auto count = static_cast<std::int32_t>(ranks.tokens.size());
  const auto endoftext = [&ranks](std::int32_t id) {
    ranks.specials.push_back({"<|endoftext|>", id});
    ranks.eos = "<|endoftext|>";
  };
  ranks.pattern = kLlama3Pattern;          // this expression is also the expression of cl100k
  if (count == 50256 || count == 50280) {  // the expression of r50k (GPT-2) or p50k
    ranks.pattern = kGpt2Pattern;
    endoftext(50256);
  } else if (count == 100256) {  // the expression of cl100k
    endoftext(100257);
    ranks.specials.insert(ranks.specials.end(), {{"<|fim_prefix|>", 100258},
                                                 {"<|fim_middle|>", 100259},
                                                 {"<|fim_suffix|>", 100260},
                                                 {"<|endofprompt|>", 100276}});
  } else if (count == 199998) {  // the expression of o200k
    ranks.pattern = kO200kPattern;
    endoftext(199999);
    ranks.specials.push_back({"<|endofprompt|>", 200018});
  } else if (count == 128000) {  // the expression of Llama 3
    constexpr std::array<std::string_view, 11> kNamed = {"<|begin_of_text|>",
                                                         "<|end_of_text|>",
                                                         "<|reserved_special_token_0|>",
                                                         "<|reserved_special_token_1|>",
                                                         "<|finetune_right_pad_id|>",
                                                         "<|reserved_special_token_2|>",
                                                         "<|start_header_id|>",
                                                         "<|end_header_id|>",
                                                         "<|eom_id|>",
                                                         "<|eot_id|>",
                                                         "<|python_tag|>"};
    for (std::int32_t i = 0; i < 256; ++i) {
      std::string text = i < 11 ? std::string(kNamed[static_cast<std::size_t>(i)])
                                : fmt::format("<|reserved_special_token_{}|>", i - 8);
      ranks.specials.push_back({std::move(text), count + i});
    }
    ranks.bos = "<|begin_of_text|>";
    ranks.eos = "<|end_of_text|>";
    ranks.frames_with_bos = true;
  } else {
    std::int64_t next = 0;
    for (const auto& [bytes, rank] : ranks.tokens) next = std::max(next, rank + 1);
    if (next < INT32_MAX) endoftext(static_cast<std::int32_t>(next));
    ranks.note = fmt::format(
        "a rank file of {} tokens is unknown: Llama 3's splitting expression is used, and <|endoftext|> is "
        "added",
        count);
  }
}

Ranks parse_rank_file(std::string_view bytes, const std::string& path) {
  Ranks ranks;
  for (std::int64_t line = 1; !bytes.empty(); ++line) {
    std::string_view text = bytes.substr(0, bytes.find('\n'));
    bytes.remove_prefix(std::min(text.size() + 1, bytes.size()));
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.empty()) continue;
    if (!parse_line(text, ranks.tokens.emplace_back())) {
      throw invalid("a line is not base64, a space and a rank").at(fmt::format("{}:{}", path, line));
    }
  }
  recognise(ranks);
  return ranks;
}

Ranks parse_megatron_json(std::string_view bytes, const std::string& path) {
  Ranks ranks;
  JsonReader reader(bytes, path, {.python = true});
  std::string key, text;
  reader.begin_array();
  while (reader.next_element()) {
    auto& [token, id] = ranks.tokens.emplace_back();
    id = -1;
    reader.begin_object();
    while (reader.next_key(key)) {
      if (key == "rank") {
        id = reader.read_int();
      } else if (key == "token_bytes") {
        reader.read_string(text);
        auto decoded = decode_base64(text);
        if (!decoded || decoded->empty()) reader.fail("\"token_bytes\" is not base64");
        token = std::move(*decoded);
      } else {
        reader.skip();
      }
    }
    if (id != static_cast<std::int64_t>(ranks.tokens.size()) - 1 || token.empty()) {
      reader.fail("a token has no bytes, or its rank differs from its place in the list");
    }
    id += kMegatronSpecials;
  }
  reader.finish();
  ranks.tokens.resize(std::min(ranks.tokens.size(), kMegatronVocabulary - kMegatronSpecials));
  constexpr std::array<std::string_view, 7> kNamed = {"<unk>", "<s>",   "</s>", "<mask>",
                                                      "<pad>", "<cls>", "<sep>"};
  for (std::int32_t i = 0; i < kMegatronSpecials; ++i) {
    ranks.specials.push_back(
        {i < 7 ? std::string(kNamed[static_cast<std::size_t>(i)]) : fmt::format("<SPECIAL_{}>", i), i});
  }
  ranks.pattern = kMegatronPattern;
  ranks.unk = "<unk>";
  ranks.bos = "<s>";
  ranks.eos = "</s>";
  ranks.pad = "<pad>";
  return ranks;
}

// Returns all merges of two tokens into a third.
std::vector<MergeTable::Merge> all_merges(const Ranks& ranks, const Vocabulary& by_bytes) {
  std::vector<MergeTable::Merge> merges;
  constexpr std::size_t kMaxTokenBytes = 4096;
  for (const auto& [bytes, id] : ranks.tokens) {
    if (bytes.size() > kMaxTokenBytes) throw unsupported("a token of more than 4096 bytes is not supported");
    const std::string_view token = bytes;
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = by_bytes.find(token.substr(0, cut));
      const auto right = by_bytes.find(token.substr(cut));
      if (left && right)
        merges.push_back({*left, *right, static_cast<std::int32_t>(id), static_cast<std::uint32_t>(id)});
    }
  }
  return merges;
}

class TiktokenTokenizer final : public Tokenizer {
 public:
  TiktokenTokenizer(std::string bytes, const std::string& path, std::string type)
      : type_(std::move(type)), fingerprint_(XXH3_64bits(bytes.data(), bytes.size())) {
    Ranks ranks = bytes.find_first_not_of(" \t\r\n") != std::string::npos &&
                          bytes[bytes.find_first_not_of(" \t\r\n")] == '['
                      ? parse_megatron_json(bytes, path)
                      : parse_rank_file(bytes, path);
    try {
      build(ranks);
    } catch (Error& error) {
      if (error.location().empty()) error.at(path);
      throw;
    }
  }

  std::string_view name() const override { return type_; }
  std::int32_t vocab_size() const override { return vocab_size_; }
  const SpecialIds& special_ids() const override { return special_ids_; }
  std::string token_text(std::int32_t id) const override {
    check_id(id);
    return std::string(text_of(id));
  }
  std::optional<std::int32_t> token_id(std::string_view token) const override {
    for (const auto& [id, text] : specials_) {
      if (text == token) return id;
    }
    return model_->vocabulary().find(token);
  }
  bool is_special(std::int32_t id) const override { return specials_.contains(id); }
  std::uint64_t fingerprint() const override { return fingerprint_; }
  void save(const std::filesystem::path& folder) const override;

 protected:
  void encode_text(std::string_view text, std::vector<std::int32_t>& ids) const override {
    std::string repaired;
    const auto scratch = scratches_.borrow();
    TextBudget budget(text.size());
    matcher_.split(unicode::valid_or_repaired(text, repaired), [&](std::string_view part, std::int32_t id) {
      if (id >= 0) return ids.push_back(id);
      splitter_->split({part, false}, budget,
                       [&](Piece piece) { model_->encode(piece.text, ids, *scratch); });
    });
  }
  std::unique_ptr<Decoding> new_decoding() const override { return std::make_unique<State>(*this); }

 private:
  class State final : public Decoding {
   public:
    explicit State(const TiktokenTokenizer& tokenizer) : tokenizer_(tokenizer) {}
    void push(std::int32_t id, std::string& out) override {
      const std::string_view text = tokenizer_.text_of(id);
      if (tokenizer_.is_special(id)) return stream_.push(text, out);
      stream_.push(byte_level::to_bytes(text).value_or(""), out);
    }
    void finish(std::string& out) override { stream_.finish(out); }

   private:
    const TiktokenTokenizer& tokenizer_;
    Utf8Stream stream_;
  };

  void build(const Ranks& ranks) {
    Vocabulary by_bytes, vocabulary;
    for (const auto& [bytes, id] : ranks.tokens) {
      by_bytes.add(bytes, id);
      vocabulary.add(byte_level::to_text(bytes), id);
    }
    by_bytes.finish();
    vocabulary.finish();
    for (int byte = 0; byte < 256; ++byte) {
      const char value = static_cast<char>(byte);
      if (!by_bytes.find({&value, 1})) throw invalid(fmt::format("the byte {} has no rank", byte));
    }
    BpeOptions options;
    options.byte_level = true;
    options.ignore_merges = true;
    vocab_size_ = vocabulary.size();
    merges_ = all_merges(ranks, by_bytes);
    model_.emplace(std::move(options), std::move(vocabulary), merges_);
    pattern_ = ranks.pattern;
    splitter_ = make_regex_split(pattern_, SplitBehavior::kIsolated, false);
    if (!ranks.note.empty()) notes_.push_back(ranks.note);

    std::vector<AddedToken> tokens;
    std::vector<std::string> contents;
    for (const Special& special : ranks.specials) {
      if (special.id < model_->vocabulary().size() && !model_->vocabulary().text(special.id).empty()) {
        throw invalid(fmt::format("the rank {} belongs to {}", special.id, special.text));
      }
      specials_.emplace(special.id, special.text);
      vocab_size_ = std::max(vocab_size_, special.id + 1);
      AddedToken& token = tokens.emplace_back();
      token.id = special.id;
      contents.push_back(special.text);
    }
    matcher_ = AddedTokenMatcher(std::move(tokens), contents);
    const auto role = [this](const std::optional<std::string>& text) {
      return text ? token_id(*text) : std::nullopt;
    };
    special_ids_ = {role(ranks.bos), role(ranks.eos), role(ranks.pad), role(ranks.eos), role(ranks.unk)};
    if (ranks.frames_with_bos) frame_.before = {*special_ids_.bos};
  }

  std::string_view text_of(std::int32_t id) const {
    if (const auto it = specials_.find(id); it != specials_.end()) return it->second;
    return id < model_->vocabulary().size() ? model_->vocabulary().text(id) : std::string_view();
  }

  std::string type_;
  std::uint64_t fingerprint_;
  std::string_view pattern_;
  std::unique_ptr<PreTokenizer> splitter_;
  std::vector<MergeTable::Merge> merges_;  // merges, used by save()
  std::optional<BpeModel> model_;
  std::map<std::int32_t, std::string> specials_;
  AddedTokenMatcher matcher_;
  SpecialIds special_ids_;
  std::int32_t vocab_size_ = 0;
  mutable Pool<BpeModel::Scratch> scratches_;
};

// Writes a tokenizer.json. Hugging Face ranks pairs of tokens, while tiktoken ranks the merged tokens. Pairs
// that make the same token get consecutive ranks, as in transformers' own conversion.
void TiktokenTokenizer::save(const std::filesystem::path& folder) const {
  using nlohmann::ordered_json;
  std::vector<MergeTable::Merge> sorted = merges_;
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.rank, a.left, a.right) < std::tuple(b.rank, b.left, b.right);
  });
  ordered_json merges = ordered_json::array();
  for (const auto& merge : sorted)
    merges.push_back(ordered_json::array({text_of(merge.left), text_of(merge.right)}));
  ordered_json vocabulary = ordered_json::object();
  auto& entries = vocabulary.get_ref<ordered_json::object_t&>();
  for (std::int32_t id = 0; id < model_->vocabulary().size(); ++id) {
    const std::string_view text = model_->vocabulary().text(id);
    if (!text.empty()) entries.emplace_back(std::string(text), id);
  }
  ordered_json added = ordered_json::array();
  for (const auto& [id, text] : specials_) {
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const ordered_json split = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern_}}}, {"behavior", "Isolated"}, {"invert", false}};
  const ordered_json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  ordered_json post_processor = nullptr;
  if (!frame_.before.empty()) {
    const std::string bos(text_of(frame_.before.front()));
    const auto sequence = [](const char* id, int type) -> ordered_json {
      return {{"Sequence", {{"id", id}, {"type_id", type}}}};
    };
    const ordered_json special = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
    post_processor = {
        {"type", "TemplateProcessing"},
        {"single", ordered_json::array({special, sequence("A", 0)})},
        {"pair", ordered_json::array({special, sequence("A", 0), sequence("B", 1)})},
        {"special_tokens",
         {{bos, {{"id", bos}, {"ids", frame_.before}, {"tokens", ordered_json::array({bos})}}}}}};
  }
  const ordered_json tokenizer = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({split, byte_level})}}},
      {"post_processor", std::move(post_processor)},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"},
        {"ignore_merges", true},
        {"vocab", std::move(vocabulary)},
        {"merges", std::move(merges)}}}};
  ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                         {"clean_up_tokenization_spaces", false}};
  for (const auto& [key, id] : roles_of(special_ids_)) {
    if (id) config[key] = text_of(*id);
  }
  make_folders(folder);
  write_file_atomic(folder / "tokenizer.json", tokenizer.dump() + "\n");
  write_file_atomic(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace

bool looks_like_tiktoken(std::string_view bytes) {
  const std::size_t first = bytes.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return false;
  // A JSON list is a tiktoken file, because a tokenizer.json is an object.
  if (bytes[first] == '[') return true;
  std::pair<std::string, std::int64_t> token;
  std::string_view line = bytes.substr(0, bytes.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return parse_line(line, token);
}

std::unique_ptr<Tokenizer> make_tiktoken_tokenizer(std::string bytes, const std::string& path,
                                                   std::string type) {
  return std::make_unique<TiktokenTokenizer>(std::move(bytes), path, std::move(type));
}

}  // namespace primus
