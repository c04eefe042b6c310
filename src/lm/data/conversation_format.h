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
//   mistral   [INST] QUESTION [/INST] ANSWER<eos>                     a system's text before the first
//   question
//
// The others write every turn alike (TurnMarks): chatml, llama3, gemma, phi3, phi4, zephyr.
//
//   chatml    <|im_start|>ROLE
//             TEXT<|im_end|>                                          a line end, and the next turn
//
// Learned are the assistant's texts and what ends them (the end-of-text token, or the mark that ends a turn),
// so that the model learns to stop. An answer that is empty or blank is not learned, and neither is its end.
//
// Where a prompt ends and an answer begins, tokens never span both: at use, the prompt is encoded alone.
// Where the tokenizer would merge across the border, the answer is encoded by itself; else its tokens are
// those that it has in the whole text, as transformers encodes what chat_template.h's template renders.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lm/data/conversation.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

enum class ConversationFormat : std::uint8_t {
  kAlpaca,
  kSquad,
  kMistral,
  kChatMl,
  kLlama3,
  kGemma,
  kPhi3,
  kPhi4,
  kZephyr
};

// Also bridge_squad; and messages and openai for chatml. Nothing for another name.
std::optional<ConversationFormat> conversation_format(std::string_view name);
std::string_view name_of(ConversationFormat format);
inline constexpr std::string_view kConversationFormats =
    "alpaca, squad, chatml, llama3, mistral, gemma, phi3, phi4, zephyr";

// Marks around the turns of a format that writes all alike: open ROLE middle TEXT end after.
struct TurnMarks {
  std::string_view open, middle;
  std::string_view end;  // empty: the token that ends a text
  std::string_view after;
  std::string_view assistant = kAssistant;  // the role's name
  bool system_turn = true;                  // false: a system's text stands before the first question
  bool trimmed = false;                     // blanks around texts are left out
  bool any_role = true;                     // tool, developer ... have turns, too
};
// Null for alpaca, squad and mistral.
const TurnMarks* turn_marks(ConversationFormat format);

// A format, and what one model's template has of its own.
struct ConversationStyle {
  ConversationFormat format = ConversationFormat::kAlpaca;
  // As sft_bridge_compat_inline_bos: each text between two borders is encoded by itself, with what begins and
  // ends every text.
  bool inline_bos = false;
  std::string default_system;  // the system's text of a conversation that has none
  // Whether the token that begins a text stands in front; nothing: where the tokenizer puts it itself.
  std::optional<bool> begins_with_bos;
  // For mistral: a space after [INST] and before an answer; a space before [/INST].
  bool space_in = true, space_out = true;

  bool operator==(const ConversationStyle&) const = default;
};

inline constexpr std::string_view kAlpacaPreamble =
    "Below is an instruction that describes a task. Write a response that appropriately completes the "
    "request.";

// Whether the tokenizer has all the special tokens that the format is written with.
bool can_write(ConversationFormat format, const Tokenizer& tokenizer);
// The token that ends a text: eos, or eod.
std::optional<std::int32_t> end_of_text(const Tokenizer& tokenizer);
// Tokens before every conversation.
std::vector<std::int32_t> beginning_of(const ConversationStyle& style, const Tokenizer& tokenizer);

struct LearnedTokens {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learned;  // one per id: 1 where it counts as a label
};

// Thread-safety: const methods may be called from any number of threads at once.
class ConversationWriter {
 public:
  // `tokenizer` must outlive it. Error(kInvalid) where the tokenizer lacks a special token that the format is
  // written with, or has no token that ends a text.
  // `choice`: what users write before a format's name, for hints.
  ConversationWriter(ConversationStyle style, const Tokenizer& tokenizer,
                     std::string choice = "sft_conversation_format: ");
  ConversationWriter(ConversationFormat format, const Tokenizer& tokenizer, bool inline_bos = false)
      : ConversationWriter(ConversationStyle{.format = format, .inline_bos = inline_bos}, tokenizer) {}

  // Replaces `out`. The conversation has messages. Error(kInvalid), without a place, for turns that the
  // format cannot express.
  void write(const Conversation& conversation, LearnedTokens& out) const;
  // The beginning of a text that the model is to go on from: `messages`, and the assistant's turn begun.
  std::vector<std::int32_t> prompt(const std::vector<Message>& messages) const;
  // What ends an answer.
  std::int32_t end_id() const { return end_; }
  const ConversationStyle& style() const { return style_; }
  // Whether a conversation may have several turns.
  bool has_turns() const { return style_.format != ConversationFormat::kSquad; }
  // Whether it may begin with a system's text.
  bool has_system() const { return style_.format != ConversationFormat::kSquad; }
  // A space that belongs to the format, and not to the answer behind it.
  std::string_view answer_prefix() const {
    return style_.format == ConversationFormat::kMistral && style_.space_in ? " " : "";
  }

 private:
  // A text that is encoded as one; `ends`: what ends an answer stands behind it.
  struct Piece {
    std::string text;
    bool learned = false, ends = false;
  };
  std::vector<Piece> pieces(const std::vector<Message>& messages, bool open) const;
  std::vector<Piece> alpaca(const std::vector<Message>& messages, bool open) const;
  std::vector<Piece> squad(const std::vector<Message>& messages, bool open) const;
  std::vector<Piece> mistral(const std::vector<Message>& messages, bool open) const;
  std::vector<Piece> turns(const TurnMarks& marks, const std::vector<Message>& messages, bool open) const;
  // `messages` with the default system's text; of formats without a turn for it, moved into the first
  // question.
  std::vector<Message> prepared(const std::vector<Message>& messages, bool system_turn) const;
  void encode(const std::vector<Piece>& pieces, LearnedTokens& out) const;
  // The ids of `text` where it follows `before`; an empty `before` is what no text merges with.
  void encode_behind(std::string_view before, std::string_view text, std::vector<std::int32_t>& ids) const;

  // Throws Error(kInvalid) where the format has no name for the turn's role.
  void require_role(const Message& message) const;
  // Hints that name other formats.
  std::string set_format(std::string_view name) const;

  ConversationStyle style_;
  const Tokenizer& tokenizer_;
  std::string choice_;
  std::int32_t end_ = 0;
  // Spelling of the tokens that end an answer and begin a text; empty where the tokenizer does not read them
  // so.
  std::string end_text_, beginning_text_;
  std::vector<std::int32_t> beginning_;
};

}  // namespace primus::data
