#include "lm/tokenizer/huggingface/added_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>

namespace primus {

void AddedVocabulary::add(AddedToken token) {
  if (token.content.empty()) return;
  const std::int32_t written = token.id;
  const auto there = find(token.content);
  const auto in_model = there ? there : find_(token.content);
  token.id = in_model ? *in_model : next_;
  if (there) token.special |= tokens_.at(*there).special;
  if (written >= 0 && written != token.id && moved_++ == 0)
    first_moved_ = fmt::format("'{}' has {}, not {}", token.content, token.id, written);
  next_ = std::max(next_, token.id + 1);
  ids_[token.content] = token.id;
  tokens_[token.id] = std::move(token);
}

std::string AddedVocabulary::remark() const {
  if (moved_ == 0) return {};
  return fmt::format("{} added token{} other ids than the file says, as in the tokenizers library: {}{}",
                     moved_, moved_ == 1 ? " has" : "s have", first_moved_, moved_ == 1 ? "" : ", ...");
}

}  // namespace primus
