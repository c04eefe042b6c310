#include "lm/tokenizer/bpe/bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <queue>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "lm/tokenizer/bpe/byte_level.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus {

namespace {

using nlohmann::ordered_json;

using Pair = std::pair<std::int32_t, std::int32_t>;

std::uint64_t pack(Pair pair) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(pair.first)) << 32 |
         static_cast<std::uint32_t>(pair.second);
}
Pair unpack(std::uint64_t key) {
  return {static_cast<std::int32_t>(key >> 32), static_cast<std::int32_t>(key)};
}

struct PairHash {
  std::size_t operator()(std::uint64_t key) const { return (key ^ key >> 31) * 0x9E3779B97F4A7C15u; }
};

struct Word {
  std::vector<std::int32_t> symbols;
  std::int64_t count;
};

// The occurrences of one pair.
struct Occurrences {
  std::int64_t count = 0;
  std::vector<std::uint32_t> words;  // indices of words that have or had the pair; may contain duplicates
};

// Counts and merges pairs over all distinct words.
class PairMerger {
 public:
  explicit PairMerger(std::vector<Word> words) : words_(std::move(words)) {
    for (std::uint32_t w = 0; w < words_.size(); ++w) {
      const auto& symbols = words_[w].symbols;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
        change({symbols[i], symbols[i + 1]}, words_[w].count, w);
    }
    for (const auto& [key, occurrences] : pairs_) queue_.push({occurrences.count, key});
    touched_.clear();
  }

  // Returns the pair to merge next and its number of occurrences; 0 if no pair is left.
  std::pair<Pair, std::int64_t> best() {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      const std::int64_t now = pairs_[top.key].count;
      if (now == top.count && now > 0) return {unpack(top.key), now};
      // If the count has changed since the candidate was queued, queues the candidate again with the new
      // count.
      queue_.pop();
      if (now > 0 && now < top.count) queue_.push({now, top.key});
    }
    return {{}, 0};
  }

  void merge(Pair pair, std::int32_t result) {
    std::vector<std::uint32_t> where = std::move(pairs_[pack(pair)].words);
    std::sort(where.begin(), where.end());
    where.erase(std::unique(where.begin(), where.end()), where.end());
    for (const std::uint32_t w : where) merge_in_word(w, pair, result);
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    for (const std::uint64_t key : touched_) {
      const std::int64_t count = pairs_[key].count;
      if (count > 0) queue_.push({count, key});
    }
    touched_.clear();
  }

 private:
  struct Candidate {
    std::int64_t count;
    std::uint64_t key;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  void change(Pair pair, std::int64_t by, std::uint32_t word) {
    const std::uint64_t key = pack(pair);
    Occurrences& occurrences = pairs_[key];
    occurrences.count += by;
    if (by <= 0) return;
    if (occurrences.words.empty() || occurrences.words.back() != word) occurrences.words.push_back(word);
    touched_.push_back(key);
  }

  void merge_in_word(std::uint32_t w, Pair pair, std::int32_t result) {
    auto& [symbols, count] = words_[w];
    std::size_t to = 0;
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      const bool found = i + 1 < symbols.size() && symbols[i] == pair.first && symbols[i + 1] == pair.second;
      if (!found) {
        symbols[to++] = symbols[i];
        continue;
      }
      if (to > 0) {
        change({symbols[to - 1], pair.first}, -count, w);
        change({symbols[to - 1], result}, count, w);
      }
      if (i + 2 < symbols.size()) {
        change({pair.second, symbols[i + 2]}, -count, w);
        change({result, symbols[i + 2]}, count, w);
      }
      change(pair, -count, w);
      symbols[to++] = result;
      ++i;
    }
    symbols.resize(to);
  }

  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, Occurrences, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<std::uint64_t> touched_;  // pairs whose count increased since the last merge
};

ordered_json added_token(std::int32_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

ordered_json pre_tokenizer(bool gpt2_style) {
  ordered_json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", gpt2_style}};
  if (gpt2_style) return bytes;
  ordered_json split = {{"type", "Split"},
                        {"pattern", {{"Regex", kLlama3Pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({std::move(split), std::move(bytes)})}};
}

// Returns a tokenizer.json with these tokens; the ids are their indices.
std::string tokenizer_file(const BpeTrainerOptions& options, const std::vector<std::string>& tokens,
                           ordered_json merges) {
  ordered_json vocabulary = ordered_json::object();
  auto& entries = vocabulary.get_ref<ordered_json::object_t&>();
  // Filled directly, because inserting into an ordered object searches all earlier keys.
  entries.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) entries.emplace_back(tokens[i], i);
  ordered_json added = ordered_json::array();
  for (std::size_t i = 0; i < options.special_tokens.size(); ++i) {
    added.push_back(added_token(static_cast<std::int32_t>(i), options.special_tokens[i]));
  }
  const ordered_json result = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", nullptr},
      {"pre_tokenizer", pre_tokenizer(options.gpt2_style)},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", false},
        {"vocab", std::move(vocabulary)},
        {"merges", std::move(merges)}}}};
  return result.dump(2) + "\n";
}

}  // namespace

BpeTrainer::BpeTrainer(BpeTrainerOptions options)
    : options_(std::move(options)),
      splitter_(make_regex_split(options_.gpt2_style ? kGpt2Pattern : kLlama3Pattern,
                                 SplitBehavior::kIsolated, false)) {
  const auto minimum = static_cast<std::int64_t>(options_.special_tokens.size()) + 256;
  if (options_.vocab_size < minimum) {
    throw invalid(
        fmt::format("a byte-level vocabulary of {} tokens is too small", options_.vocab_size),
        fmt::format("256 bytes and {} special tokens need {}", options_.special_tokens.size(), minimum));
  }
}

void BpeTrainer::add(std::string_view text) {
  std::string repaired;
  TextBudget budget(text.size());
  splitter_->split({unicode::valid_or_repaired(text, repaired), true}, budget, [this](Piece piece) {
    const auto it = words_.find(piece.text);
    if (it != words_.end()) {
      ++it->second;
    } else {
      words_.emplace(piece.text, 1);
    }
  });
}

void BpeTrainer::add(BpeTrainer&& other) {
  for (auto& [word, count] : other.words_) words_[word] += count;
  other.words_.clear();
}

std::string BpeTrainer::train(const std::function<void(std::int64_t, std::int64_t)>& progress) const {
  if (words_.empty())
    throw invalid("the input has no text to train a tokenizer on",
                  "check that the input files are not empty");
  // Order of ids: special tokens, then the bytes in the order of their characters, then merged tokens.
  std::vector<std::string> tokens = options_.special_tokens;
  std::vector<std::pair<char32_t, int>> alphabet;
  for (int byte = 0; byte < 256; ++byte) {
    alphabet.emplace_back(byte_level::to_character(static_cast<unsigned char>(byte)), byte);
  }
  std::sort(alphabet.begin(), alphabet.end());
  std::array<std::int32_t, 256> byte_ids;
  for (const auto& [character, byte] : alphabet) {
    byte_ids[static_cast<std::size_t>(byte)] = static_cast<std::int32_t>(tokens.size());
    unicode::append(character, tokens.emplace_back());
  }
  std::unordered_map<std::string, std::int32_t> ids;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!ids.emplace(tokens[i], static_cast<std::int32_t>(i)).second) {
      throw invalid(fmt::format("'{}' cannot be a special token: it is another token already", tokens[i]));
    }
  }

  // Sorts the words, so that the result does not depend on the hash table's order.
  std::vector<const std::pair<const std::string, std::int64_t>*> sorted;
  for (const auto& entry : words_) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  std::vector<Word> words;
  words.reserve(sorted.size());
  for (const auto* entry : sorted) {
    Word& word = words.emplace_back();
    word.count = entry->second;
    for (const char c : entry->first) word.symbols.push_back(byte_ids[static_cast<unsigned char>(c)]);
  }

  PairMerger merger(std::move(words));
  ordered_json merges = ordered_json::array();
  const std::int64_t wanted = options_.vocab_size - static_cast<std::int64_t>(tokens.size());
  while (static_cast<std::int64_t>(tokens.size()) < options_.vocab_size) {
    const auto [pair, count] = merger.best();
    if (count == 0 || count < options_.min_frequency) break;
    const std::string& left = tokens[static_cast<std::size_t>(pair.first)];
    const std::string& right = tokens[static_cast<std::size_t>(pair.second)];
    merges.push_back(ordered_json::array({left, right}));
    std::string text = left + right;
    const auto [it, added] = ids.try_emplace(std::move(text), static_cast<std::int32_t>(tokens.size()));
    if (added) tokens.push_back(it->first);
    merger.merge(pair, it->second);
    if (progress && merges.size() % 64 == 0) progress(static_cast<std::int64_t>(merges.size()), wanted);
  }

  return tokenizer_file(options_, tokens, std::move(merges));
}

}  // namespace primus
