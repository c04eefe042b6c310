// A chat with a model that was trained on plain text: turns written one after the other as
//
//   User: How are you?
//   Assistant: Fine.
//   User: ...
//
// The model writes after "Assistant:" until it begins a line "User:" itself, ends the text, or has written
// enough. A model that was fine-tuned on conversations is asked in their format instead. Keys and values stay
// in the decoder's pages between turns, so each turn reads only what is new. When the context is full, the
// oldest turns are forgotten.
//
// Models that were trained on another format come with a Jinja chat template; this format is not an
// approximation of those, and callers should say so. Not thread-safe.
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
  // All that is given by reference must outlive it. `writer`: of the
  // format in which turns are written; null: as above. `system`: what stands before the first turn, and is
  // never forgotten; empty: nothing. Throws Error(kInvalid) where the format has no place for it.
  Conversation(DecodeScheduler& decoder, const Tokenizer& tokenizer, GenerateSettings settings,
               const data::ConversationWriter* writer = nullptr, std::string system = {});

  struct Reply {
    std::string text;
    StopReason reason = StopReason::kStopToken;  // kCallback: the model began the user's next turn
    std::size_t forgotten_turns = 0;             // to make room for this one
  };
  // One turn: `on_text` gets the reply piece by piece, and may end it by returning false.
  Reply say(std::string_view user, const std::function<bool(std::string_view)>& on_text = {});
  // Starts over.
  void clear();

  std::size_t turns() const { return writer_ ? messages_.size() / 2 : turns_.size(); }  // a system's is none

 private:
  Reply say_formatted(std::string_view user, const std::function<bool(std::string_view)>& on_text);
  std::size_t make_room(std::size_t tokens);

  DecodeScheduler& decoder_;
  const Tokenizer& tokenizer_;
  GenerateSettings settings_;
  const data::ConversationWriter* writer_;
  const std::string system_;
  // With a writer: the system's text, where there is one, and the user's and the model's in turn.
  std::vector<data::Message> messages_;
  std::vector<std::int32_t> tokens_;  // of the conversation
  std::size_t prefix_ = 0;            // of them, what stands before every text (bos, say)
  std::vector<std::size_t> turns_;    // where each turn begins
};

}  // namespace primus
