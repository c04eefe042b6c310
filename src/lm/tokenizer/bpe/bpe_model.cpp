#include "lm/tokenizer/bpe/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "lm/tokenizer/bpe/byte_level.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus {

namespace {

constexpr std::size_t kMaxAffixBytes = 64;

}  // namespace

BpeModel::BpeModel(BpeOptions options, Vocabulary vocabulary, const MergeList& merges)
    : options_(std::move(options)), vocabulary_(std::move(vocabulary)) {
  const auto id_of = [&](const std::string& token, std::size_t rank) {
    const auto id = vocabulary_.find(token);
    if (!id)
      throw invalid(fmt::format("merge {} needs the token '{}', which the vocabulary lacks", rank, token));
    return *id;
  };
  std::vector<MergeTable::Merge> table;
  table.reserve(merges.size());
  const std::size_t prefix = options_.continuing_subword_prefix.size();
  std::string result;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    result = left;
    result += std::string_view(right).substr(std::min(prefix, right.size()));
    table.push_back(
        {id_of(left, rank), id_of(right, rank), id_of(result, rank), static_cast<std::uint32_t>(rank)});
  }
  merges_ = MergeTable(table);
  prepare();
}

BpeModel::BpeModel(BpeOptions options, Vocabulary vocabulary, std::span<const MergeTable::Merge> merges)
    : options_(std::move(options)), vocabulary_(std::move(vocabulary)), merges_(merges) {
  prepare();
}

void BpeModel::prepare() {
  for (const std::string* affix : {&options_.continuing_subword_prefix, &options_.end_of_word_suffix}) {
    // Limits the length of the affix, because the affix is added to every character.
    if (affix->size() > kMaxAffixBytes) {
      throw unsupported(fmt::format("a prefix or suffix of tokens with more than {} bytes is not supported",
                                    kMaxAffixBytes));
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char value = static_cast<char>(byte);
    const std::string token =
        options_.byte_level ? byte_level::to_text({&value, 1}) : fmt::format("<0x{:02X}>", byte);
    byte_ids_[static_cast<std::size_t>(byte)] = vocabulary_.find(token).value_or(-1);
  }
  if (!options_.unk_token.empty()) {
    unk_id_ = vocabulary_.find(options_.unk_token);
    if (!unk_id_)
      throw invalid(fmt::format("the unknown token '{}' is not in the vocabulary", options_.unk_token));
  }
  if (options_.byte_level && options_.ignore_merges) {
    for (std::int32_t id = 0; id < vocabulary_.size(); ++id) {
      const std::string_view text = vocabulary_.text(id);
      if (const auto bytes = byte_level::to_bytes(text); bytes && !text.empty()) words_.add(*bytes, id);
    }
    words_.finish();
  }
}

void BpeModel::encode(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const {
  if (scratch.cache.lookup(word, ids)) return;
  auto& symbols = scratch.symbols;
  symbols.clear();
  if (options_.ignore_merges) {
    const auto id = options_.byte_level ? words_.find(word) : vocabulary_.find(word);
    if (id) symbols.push_back(*id);
  }
  if (symbols.empty()) {
    first_symbols(word, symbols);
    merge_symbols(merges_, symbols, scratch.merge);
  }
  scratch.cache.store(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void BpeModel::first_symbols(std::string_view word, std::vector<std::int32_t>& symbols) const {
  const bool plain = options_.byte_level && options_.continuing_subword_prefix.empty() &&
                     options_.end_of_word_suffix.empty();
  if (!plain) return character_symbols(word, symbols);
  bool whole = true;
  for (const char byte : word) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
    whole &= id >= 0;
    symbols.push_back(id);
  }
  if (whole) return;
  symbols.clear();
  character_symbols(word, symbols);
}

void BpeModel::character_symbols(std::string_view word, std::vector<std::int32_t>& symbols) const {
  std::string storage;
  if (options_.byte_level) word = storage = byte_level::to_text(word);
  std::string symbol;
  // Whether unknown characters were read whose unknown token has not been added yet.
  bool unknown = false;
  for (std::size_t begin = 0; begin < word.size();) {
    const std::size_t end = begin + static_cast<std::size_t>(unicode::char_length(word[begin]));
    symbol.clear();
    if (begin > 0) symbol += options_.continuing_subword_prefix;
    symbol += word.substr(begin, end - begin);
    if (end == word.size()) symbol += options_.end_of_word_suffix;
    begin = end;
    if (const auto id = vocabulary_.find(symbol)) {
      if (std::exchange(unknown, false)) symbols.push_back(*unk_id_);
      symbols.push_back(*id);
      continue;
    }
    if (options_.byte_fallback && append_fallback(symbol, symbols)) continue;
    if (!unk_id_) continue;
    if (unknown && !options_.fuse_unk) symbols.push_back(*unk_id_);
    unknown = true;
  }
  if (unknown) symbols.push_back(*unk_id_);
}

bool BpeModel::append_fallback(std::string_view character, std::vector<std::int32_t>& symbols) const {
  const std::size_t before = symbols.size();
  for (const char byte : character) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
    if (id < 0) {
      symbols.resize(before);
      return false;
    }
    symbols.push_back(id);
  }
  return true;
}

}  // namespace primus
