// How a conversation becomes tokens, and which of them are learned: those that the model is to write itself.
//
//   alpaca    Below is an instruction that describes a task. ...      (or the system's text)
//
//             ### Instruction:
//             QUESTION
//
//             ### Input:                                              (where the question has a context)
//             CONTEXT
//
//             ### Response:
//             ANSWER<eos>                                             further turns: a blank line, and on
//   squad     Context: CONTEXT Question: QUESTION Answer: ANSWER<eos>   one turn, without a system's
//   chatml    <|im_start|>ROLE
//             TEXT<|im_end|>                                          a line end, and the next turn
//
// Learned are the assistant's texts and what ends them (the end-of-text token, or <|im_end|>), so that the
// model learns to stop. An answer that is empty or blank is not learned, and neither is its end.
//
// Where a prompt ends and an answer begins, tokens never span both: at use, the prompt is encoded alone.
// Where the tokenizer would merge across the border, the answer is encoded by itself; else its tokens are
// those that follow the prompt's in the whole text. What begins every text (bos) stands once, in front.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lm/data/conversation.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

enum class ConversationFormat : std::uint8_t { kAlpaca, kSquad, kChatMl };

// alpaca; squad, bridge_squad; chatml, messages, openai. Nothing for another name.
std::optional<ConversationFormat> conversation_format(std::string_view name);
// What begins and ends a turn of chatml.
inline constexpr std::string_view kTurnBegin = "<|im_start|>", kTurnEnd = "<|im_end|>";
inline constexpr std::string_view kConversationFormats = "alpaca, squad, chatml, messages";

struct LearnedTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learned;  // one per id: 1 where it counts as a label
};

// Thread-safety: const methods may be called from any number of threads at once.
class ConversationWriter {
 public:
  // `tokenizer` must outlive it. `inline_bos`: as sft_bridge_compat_inline_bos: each text between two borders
  // is encoded by itself, with what begins and ends every text. Error(kInvalid) where the tokenizer lacks a
  // special token that the format is written with, or has no token that ends a text.
  ConversationWriter(ConversationFormat format, const Tokenizer& tokenizer, bool inline_bos = false);

  // Replaces `out`. The conversation has messages. Error(kInvalid), without a place, for turns that the
  // format cannot express.
  void write(const Conversation& conversation, LearnedTokens& out) const;
  // The beginning of a text that the model is to go on from: `messages`, and the assistant's turn begun.
  std::vector<int32_t> prompt(const std::vector<Message>& messages) const;
  // What ends an answer.
  int32_t end_id() const { return end_; }
  // Whether a conversation may have several turns.
  bool has_turns() const { return format_ != ConversationFormat::kSquad; }
  // Whether it may begin with a system's text.
  bool has_system() const { return format_ != ConversationFormat::kSquad; }

 private:
  // A text that is encoded as one; `ends`: what ends an answer stands behind it.
  struct Piece {
    std::string text;
    bool learned = false, ends = false;
  };
  std::vector<Piece> pieces(const std::vector<Message>& messages, bool open) const;
  std::vector<Piece> alpaca(const std::vector<Message>& messages, bool open) const;
  std::vector<Piece> squad(const std::vector<Message>& messages, bool open) const;
  std::vector<Piece> chatml(const std::vector<Message>& messages, bool open) const;
  void encode(const std::vector<Piece>& pieces, LearnedTokens& out) const;
  // The ids of `text` where it follows `before`; an empty `before` is what no text merges with.
  void encode_behind(std::string_view before, std::string_view text, std::vector<int32_t>& ids) const;

  ConversationFormat format_;
  const Tokenizer& tokenizer_;
  bool inline_bos_;
  int32_t end_ = 0;
};

}  // namespace primus::data
