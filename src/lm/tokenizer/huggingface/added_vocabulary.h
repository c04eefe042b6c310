// The ids of added tokens, assigned in the same way as in the tokenizers library.
//
// A token that the model contains keeps its id in the model. Every other token gets the next free id, in the
// order of add(). The ids in the files are ignored.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lm/tokenizer/huggingface/added_tokens.h"

namespace primus {

// Must be filled by one thread; afterwards any number of threads may read.
class AddedVocabulary {
 public:
  // `find` returns the id of a token in the model. `find` is called until the last add(). `count` is the
  // number of tokens in the model.
  AddedVocabulary(std::function<std::optional<std::int32_t>(std::string_view)> find, std::int32_t count)
      : find_(std::move(find)), next_(count) {}

  // Adds a token. token.id is its id in the file, or -1. If the token was already added, only its flags are
  // replaced. Empty tokens are ignored.
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
  // Returns a sentence about tokens whose ids differ from those in the files; empty if all ids agree.
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
