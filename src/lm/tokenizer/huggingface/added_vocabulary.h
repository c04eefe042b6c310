// The ids of added tokens, as the tokenizers library assigns them.
//
// A token that the model contains keeps the model's id. Every other token gets the next free id, in the order
// of the tokens. The ids in the files are ignored.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lm/tokenizer/huggingface/added_tokens.h"

namespace primus {

// Filled once, then read by any number of threads.
class AddedVocabulary {
 public:
  // `find` returns the id of a token in the model, which has `count` tokens. `find` is called until the last
  // add().
  AddedVocabulary(std::function<std::optional<std::int32_t>(std::string_view)> find, std::int32_t count)
      : find_(std::move(find)), next_(count) {}

  // token.id is the file's id, or -1. A token that exists already gets the new flags. Empty tokens are
  // ignored.
  void add(AddedToken token);

  const std::map<std::int32_t, AddedToken>& tokens() const { return tokens_; }
  const AddedToken* token(std::int32_t id) const {
    const auto it = tokens_.find(id);
    return it == tokens_.end() ? nullptr : &it->second;
  }
  std::optional<std::int32_t> find(std::string_view content) const {
    const auto it = ids_.find(content);
    return it == ids_.end() ? std::nullopt : std::optional(it->second);
  }
  // Reports which tokens have ids that differ from those in the files; empty if none has.
  std::string remark() const;

 private:
  std::function<std::optional<std::int32_t>(std::string_view)> find_;
  std::int32_t next_;
  std::map<std::int32_t, AddedToken> tokens_;
  std::map<std::string, std::int32_t, std::less<>> ids_;
  std::int64_t moved_ = 0;
  std::string first_moved_;
};

}  // namespace primus
