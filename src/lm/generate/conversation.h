// A chat with a model that was trained on plain text. Turns are formatted as
//
//   User: How are you?
//   Assistant: Fine.
//   User: ...
//
// The model writes after "Assistant:" until it begins a line with "User:", ends the text, or reaches the
// token limit. A model that was fine-tuned on conversations uses their format instead. Keys and values stay
// in the decoder's pages between turns, so each turn reads only new tokens. When the context is full, the
// oldest turns are dropped.
//
// Models trained on another format come with a Jinja chat template. The plain format above does not
// approximate such templates, and callers should tell the user about this. Not thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lm/data/conversation_format.h"
#include "lm/generate/generate.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

class Conversation {
 public:
  // All references must outlive the conversation. `writer` formats the turns; null: the plain format above is
  // used. `system`: text before the first turn, which is never dropped; empty: none. Throws Error(kInvalid)
  // if the format has no place for a system text.
  Conversation(DecodeScheduler& decoder, const Tokenizer& tokenizer, GenerateSettings settings,
               const data::ConversationWriter* writer = nullptr, std::string system = {});

  struct Reply {
    std::string text;
    StopReason reason = StopReason::kStopToken;  // kCallback: the model began the user's next turn
    std::size_t forgotten_turns = 0;             // number of turns dropped to make space for this turn
    // Tokens of the prompt including this turn, and tokens dropped from the turn's beginning because the turn
    // by itself is too long.
    std::size_t prompt_tokens = 0, lost_tokens = 0;
  };
  // Runs one turn: passes the reply piece by piece to `on_text`, which may end the reply by returning false.
  Reply say(std::string_view user, const std::function<bool(std::string_view)>& on_text = {});
  // Starts over.
  void clear();

  // Number of turns, excluding the system message.
  std::size_t turns() const { return writer_ ? messages_.size() / 2 : turns_.size(); }

 private:
  Reply answer_formatted(std::string_view user, const std::function<bool(std::string_view)>& on_text);
  std::size_t make_room(std::size_t tokens);

  DecodeScheduler& decoder_;
  const Tokenizer& tokenizer_;
  GenerateSettings settings_;
  const data::ConversationWriter* writer_;
  const std::string system_;
  // Used with a writer: the optional system message, and then the user's and the model's messages in turn.
  std::vector<data::Message> messages_;
  std::vector<std::int32_t> tokens_;  // tokens of the conversation
  std::size_t prefix_ = 0;            // number of tokens that every text begins with, such as BOS
  std::vector<std::size_t> turns_;    // index in tokens_ at which each turn begins
};

}  // namespace primus
