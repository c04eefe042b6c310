#include "lm/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include "base/error.h"
#include "lm/tokenizer/decoding.h"

namespace primus {

std::string_view ChatTemplates::source(std::string_view name) const {
  for (const Named& one : all) {
    if (one.name == name) return one.source;
  }
  return {};
}

void ChatTemplates::set_token(std::string_view name, std::string text) {
  for (const auto& token : tokens) {
    if (token.first == name) return;
  }
  tokens.emplace_back(name, std::move(text));
}

void Tokenizer::encode(std::string_view text, bool add_special, std::vector<std::int32_t>& ids) const {
  if (add_special) ids.insert(ids.end(), frame_.before.begin(), frame_.before.end());
  encode_text(text, ids);
  if (add_special) ids.insert(ids.end(), frame_.after.begin(), frame_.after.end());
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3);
  encode(text, add_special, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  const auto decoding = new_decoding();
  std::string text;
  for (const std::int32_t id : ids) {
    check_id(id);
    if (!skip_special || !is_special(id)) decoding->push(id, text);
  }
  decoding->finish(text);
  return text;
}

void Tokenizer::check_id(std::int32_t id) const {
  if (id >= 0 && id < vocab_size()) return;
  throw invalid(fmt::format("token id {} is outside this tokenizer's vocabulary of {}", id, vocab_size()),
                "check that the ids were made with this tokenizer");
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special), decoding_(tokenizer.new_decoding()) {}

StreamDecoder::~StreamDecoder() = default;

std::string StreamDecoder::push(std::int32_t id) {
  tokenizer_.check_id(id);
  std::string text;
  if (!skip_special_ || !tokenizer_.is_special(id)) decoding_->push(id, text);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  decoding_->finish(text);
  return text;
}

}  // namespace primus
