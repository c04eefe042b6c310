// A chat with a model that was trained on plain text. Turns are formatted like this:
//
//   User: How are you?
//   Assistant: Fine.
//   User: ...
//
// The model continues the text after "Assistant:" until it begins a line with "User:", ends the text, or
// reaches the token limit. A model that was fine-tuned on conversations uses the format of these
// conversations instead. Keys and values stay in the decoder's pages between turns, so each turn reads only
// new tokens. When the context is full, the oldest turns are dropped.
//
// Models trained on another format come with a Jinja chat template. For such a model the plain format above
// is wrong, and callers should warn the user. Not thread-safe.
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
  // All references must outlive the conversation. `writer` formats the turns; if null, the plain format above
  // is used. `system`: text before the first turn, which is never dropped; may be empty. Throws
  // Error(kInvalid) if `system` is not empty and the format does not support a system text.
  Conversation(DecodeScheduler& decoder, const Tokenizer& tokenizer, GenerateSettings settings,
               const data::ConversationWriter* writer = nullptr, std::string system = {});

  struct Reply {
    std::string text;
    StopReason reason = StopReason::kStopToken;  // why the reply ended; kCallback: the model began the user's
                                                 // next turn
    std::size_t forgotten_turns = 0;             // number of earlier turns that were dropped to make space
                                                 // for this turn
    // Number of tokens in the prompt including this turn. Number of tokens that were cut from the beginning
    // of this turn, because the turn alone exceeds the context.
    std::size_t prompt_tokens = 0, lost_tokens = 0;
  };
  // Runs one turn. Calls `on_text` for each part of the reply as soon as the part is generated. If `on_text`
  // returns false, the reply ends.
  Reply say(std::string_view user, const std::function<bool(std::string_view)>& on_text = {});
  // Forgets all turns.
  void clear();
  // Lets another model continue the conversation; the arguments are as in the constructor. The model reads
  // the turns again in its own format. Returns false if it cannot continue, because only one of the models
  // has a format of turns, or because plain turns have tokens of another tokenizer: then drops all turns.
  // Throws Error(kInvalid), and changes nothing, if there is a system text that the format does not support.
  bool use(DecodeScheduler& decoder, const Tokenizer& tokenizer, GenerateSettings settings,
           const data::ConversationWriter* writer);

  // Returns the number of turns, not counting the system message.
  std::size_t turns() const { return writer_ ? messages_.size() / 2 : turns_.size(); }

 private:
  Reply answer_formatted(std::string_view user, const std::function<bool(std::string_view)>& on_text);
  std::size_t make_room(std::size_t tokens);

  DecodeScheduler* decoder_;
  const Tokenizer* tokenizer_;
  GenerateSettings settings_;
  const data::ConversationWriter* writer_;
  const std::string system_;
  // Used with a writer: the system message if there is one, then alternating messages of the user and the
  // model.
  std::vector<data::Message> messages_;
  std::vector<std::int32_t> tokens_;  // tokens of the conversation
  std::size_t prefix_ = 0;            // number of tokens with which every text begins, such as BOS
  std::vector<std::size_t> turns_;    // index in tokens_ at which each turn begins
};

}  // namespace primus
