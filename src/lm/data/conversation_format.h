// How a conversation becomes tokens, and which of the tokens are learned. Learned tokens are those that the
// model itself must generate.
//
//   alpaca    Below is an instruction that describes a task. ...        (or the system text)
//
//             ### Instruction:
//             QUESTION
//
//             ### Input:                                                (if the question has a context)
//             CONTEXT
//
//             ### Response:
//             ANSWER<eos>                                               further turns follow a blank line
//   squad     Context: CONTEXT Question: QUESTION Answer: ANSWER<eos>   one turn, no system text
//   mistral   [INST] QUESTION [/INST] ANSWER<eos>                       system text before the first question
//
// The following formats write all turns in the same way (TurnMarks): chatml, llama3, gemma, phi3, phi4,
// zephyr.
//
//   chatml    <|im_start|>ROLE
//             TEXT<|im_end|> followed by a newline and the next turn
//
// The assistant's texts and the tokens that end them (the EOS token, or the end-of-turn mark) are learned, so
// that the model learns to stop. If an answer is empty or blank, neither the answer nor its end is learned.
//
// No token spans the border between a prompt and its answer, because at inference the prompt is encoded
// without the answer. If the tokenizer would merge across the border, the answer is encoded separately.
// Otherwise the tokens are the same as if the full text were encoded at once, as transformers does with the
// template of chat_template.h.
//
// The format `template` is the model's own chat template (model_template.h). The rendered text is encoded at
// once, as in transformers; a token that spans a border belongs to the text in which it begins.
#pragma once

#include <cstdint>
#include <memory>
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
  kZephyr,
  kTemplate,  // the model's own chat template; chosen by `auto` only
};

// Returns the format with this name. Also accepts bridge_squad, and messages and openai for chatml. Returns
// nullopt for an unknown name.
std::optional<ConversationFormat> conversation_format(std::string_view name);
std::string_view name_of(ConversationFormat format);
inline constexpr std::string_view kConversationFormats =
    "alpaca, squad, chatml, llama3, mistral, gemma, phi3, phi4, zephyr";

// The texts around a turn, for formats that write all turns in the same way. A turn is written as: open ROLE
// middle TEXT end after.
struct TurnMarks {
  std::string_view open, middle;
  std::string_view end;  // mark after the text of a turn; empty: the EOS token
  std::string_view after;
  std::string_view assistant = kAssistant;  // text in place of ROLE in the assistant's turns
  bool system_turn = true;                  // true: a system text is a separate turn; false: it precedes
                                            // the first question
  bool trimmed = false;                     // whether white space at both ends of texts is removed
  bool any_role = true;                     // whether roles such as tool and developer are allowed
};
// Returns the marks of a format; null for alpaca, squad and mistral, which have none.
const TurnMarks* turn_marks(ConversationFormat format);

class ModelTemplate;
struct LearnedText;

// A format, together with details that differ between models' templates.
struct ConversationStyle {
  ConversationFormat format = ConversationFormat::kAlpaca;
  // Megatron Bridge's tokenization (sft_bridge_compat_inline_bos): each text between two borders is encoded
  // separately, with its own BOS and EOS tokens.
  bool inline_bos = false;
  std::string default_system;  // system text for conversations that have no system turn
  // Whether a conversation starts with the BOS token. nullopt: yes if the tokenizer adds a BOS token itself.
  std::optional<bool> begins_with_bos;
  // For mistral: whether a space follows [INST] and precedes an answer, and whether a space precedes [/INST].
  bool space_in = true, space_out = true;
  std::shared_ptr<const ModelTemplate> own = nullptr;  // set for kTemplate only

  bool operator==(const ConversationStyle&) const = default;
};

inline constexpr std::string_view kAlpacaPreamble =
    "Below is an instruction that describes a task. Write a response that appropriately completes the "
    "request.";

// Returns whether the tokenizer has all special tokens of the format.
bool can_write(ConversationFormat format, const Tokenizer& tokenizer);
// Returns the EOS token, or the end-of-document token (eod) if the tokenizer has no EOS token.
std::optional<std::int32_t> end_of_text(const Tokenizer& tokenizer);
// Returns the tokens that precede every conversation.
std::vector<std::int32_t> beginning_of(const ConversationStyle& style, const Tokenizer& tokenizer);

struct LearnedTokens {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learned;  // one entry per id: 1 if the id is learned, else 0
  // Index in `ids` at which each text starts; the first entry is 0. A chat template may need several texts
  // for one conversation.
  std::vector<std::int64_t> starts = {0};
};

// Thread-safety: const methods may be called from any number of threads at once.
class ConversationWriter {
 public:
  // `tokenizer` must outlive the writer. Throws Error(kInvalid) if the tokenizer lacks a special token of the
  // format or has no EOS token. `choice`: the name of the option that sets the format, for hints in error
  // messages.
  ConversationWriter(ConversationStyle style, const Tokenizer& tokenizer,
                     std::string choice = "sft_conversation_format: ");
  ConversationWriter(ConversationFormat format, const Tokenizer& tokenizer, bool inline_bos = false)
      : ConversationWriter(ConversationStyle{.format = format, .inline_bos = inline_bos}, tokenizer) {}

  // Encodes `conversation` into `out`, whose old content is replaced. `conversation` must have messages.
  // Throws Error(kInvalid), without a file position, if the format cannot express a turn. Members of the
  // conversation other than texts of turns need members() == Members::kAll, and are ignored otherwise.
  void write(const Conversation& conversation, LearnedTokens& out) const;
  // Returns the prompt for generating an answer: the tokens of `conversation`, followed by the start of the
  // assistant's turn. A conversation without tools offers the tools of offer_tools().
  std::vector<std::int32_t> prompt_of(Conversation conversation) const;
  std::vector<std::int32_t> prompt(const std::vector<Message>& messages) const {
    return prompt_of({.messages = messages});
  }
  // Returns the prompt of a record of training data: like prompt(), with the tools, documents and further
  // members of the conversation if members() is Members::kAll, and with the day of training
  // (model_template.h).
  std::vector<std::int32_t> training_prompt(const Conversation& conversation) const;
  // Returns the tokens of a whole conversation, as transformers encodes it. Unlike write(), does not find out
  // which tokens are learned, so a chat template may also change answers.
  std::vector<std::int32_t> training_text(const Conversation& conversation) const;
  // Returns the tokens that follow the answer messages[answer], which the model has generated with the token
  // that ends it: the later messages, of which none is an answer, and the start of the next answer. Generated
  // tokens are not encoded again. Tools and further members are used as in training_prompt(). Throws
  // Error(kInvalid) if the format cannot write the messages after an answer.
  std::vector<std::int32_t> continuation(const Conversation& conversation, std::size_t answer) const;
  // Sets the tools that prompts offer to the model: a JSON list of descriptions. Throws Error(kInvalid) if
  // the format cannot write tools.
  void offer_tools(std::string tools);
  // Returns the token that ends an answer.
  std::int32_t end_id() const { return end_; }
  // Returns whether a special token ends an answer in the text. Otherwise the model does not learn to stop.
  bool ends_answers() const { return ends_answers_; }
  const ConversationStyle& style() const { return style_; }
  // Returns the members of records that the format can write, for read_conversation().
  Members members() const { return style_.own ? Members::kAll : Members::kText; }
  // Returns whether the format allows several turns.
  bool has_turns() const { return style_.format != ConversationFormat::kSquad; }
  // Returns whether the format allows a system text.
  bool has_system() const { return style_.format != ConversationFormat::kSquad; }
  // Returns the space that the format writes between question and answer, or "". The space is not part of the
  // answer.
  std::string_view answer_prefix() const { return answer_prefix_; }

 private:
  // A text that is encoded separately. `ends`: whether the token that ends an answer follows the text.
  struct Piece {
    std::string text;
    bool learned = false, ends = false;
  };
  std::vector<Piece> pieces(const std::vector<Message>& messages, bool open) const;
  std::vector<Piece> alpaca(const std::vector<Message>& messages, bool open) const;
  std::vector<Piece> squad(const std::vector<Message>& messages, bool open) const;
  std::vector<Piece> mistral(const std::vector<Message>& messages, bool open) const;
  std::vector<Piece> turns(const TurnMarks& marks, const std::vector<Message>& messages, bool open) const;
  // Returns `messages` with the default system text inserted if they have no system text. For formats without
  // a system turn, moves the system text into the first question.
  std::vector<Message> prepared(const std::vector<Message>& messages, bool system_turn) const;
  void encode(const std::vector<Piece>& pieces, LearnedTokens& out) const;
  void set_end(std::optional<std::int32_t> end);
  void read_own_template();
  void write_by_template(const Conversation& conversation, LearnedTokens& out) const;
  // Appends a text whose tokens do not spell the text. Encodes each learned part and each other part
  // separately.
  void encode_in_parts(const LearnedText& text, LearnedTokens& out) const;
  // Appends the ids of `text`, encoded as the continuation of the text `before`. If `before` is empty, the
  // ids are the ids of `text` in the middle of a text.
  void encode_behind(std::string_view before, std::string_view text, std::vector<std::int32_t>& ids) const;

  // Throws Error(kInvalid) if the format does not support the turn's role.
  void require_role(const Message& message) const;
  // Returns a hint for error messages that advises the user to choose the format `name`.
  std::string set_format(std::string_view name) const;

  ConversationStyle style_;
  const Tokenizer& tokenizer_;
  std::string choice_;
  std::string tools_, answer_prefix_;
  std::int32_t end_ = 0;
  bool ends_answers_ = true;
  // Texts of the tokens that end an answer and begin a conversation. Empty if the tokenizer does not encode
  // these texts as these tokens.
  std::string end_text_, beginning_text_;
  std::vector<std::int32_t> beginning_;
};

}  // namespace primus::data
