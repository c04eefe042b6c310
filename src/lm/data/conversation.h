// One training conversation, read from a JSON object: turns of text, or token ids.
//
// Accepted records (docs/formats/conversations.md):
//   messages         [{"role": "user", "content": "..."}, ...], or "conversations" with "from" and "value";
//                    a "system" key in the same object becomes the first turn. The content of a message is
//                    text, null, or a list of {"type": "text", "text": ...}; an answer with "weight": 0,
//                    "train": false or "loss": false is not learned
//   a single turn    instruction, prompt or question; response, output, answer, completion or answers;
//                    optionally input or context (text that the question refers to), system, and history
//                    (earlier turns: [[question, answer], ...]). If only "input" and "output" are present,
//                    they are question and answer. If several of these names are present, the first whose
//                    value is not null is used
//   tokens           input_ids; optionally loss_mask (1 where the token is learned; default: all) and
//                    seq_start_id (starts of several conversations)
// Keys that would change the text but that the format cannot write (tools, tool_calls, function_call,
// reasoning_content ...; images in every format) are errors; the message gives their position in the file.
// With Members::kAll, for formats that a chat template writes, these keys and all further members of messages
// are kept. All other keys are listed in `unused`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/json_reader.h"

namespace primus::data {

inline constexpr std::string_view kSystem = "system", kUser = "user", kAssistant = "assistant";

// The error for a prompt whose last message is an answer: the text would have two answers in a row.
inline constexpr std::string_view kTwoAnswers =
    "the prompt ends with an answer, and another answer follows; end the prompt with a question, or write "
    "both answers as one";

struct Message {
  std::string role;     // kSystem, kUser or kAssistant; a record with `messages` may also have tool,
                        // developer ...
  std::string text;     // text of the turn; may be empty
  std::string context;  // text that the question of a user turn refers to; may be empty
  bool learned = true;  // whether training learns this turn, if it is an assistant turn
  // With Members::kAll: whether the content is null or missing, and the names and JSON values of all members
  // of the message but its role, its content and the marks of what is learned.
  bool no_text = false;
  std::vector<std::pair<std::string, std::string>> members = {};
};

// Returns whether a text has only white space.
inline bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// Returns the first turns of a conversation: one system turn, or none if `text` is empty.
inline std::vector<Message> with_system(const std::string& text) {
  if (text.empty()) return {};
  return {{std::string(kSystem), text, {}}};
}

struct Conversation {
  std::vector<Message> messages;  // turns; empty if the record holds token ids
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learned;  // one entry per id: 1 if it is learned, else 0
  // Index in `ids` at which each conversation starts; the first entry is 0. Empty if the record holds
  // messages.
  std::vector<std::int64_t> starts;
  // With Members::kAll: the JSON values of these keys of a record with messages or a single turn; empty if
  // the key is missing or null. `template_arguments` is the key chat_template_kwargs.
  std::string tools, documents, template_arguments;
  // Keys whose value was ignored, each listed once: "id", or "messages.name" for the key "name" in a message.
  std::vector<std::string> unused;
  // Keys of questions and answers that were ignored. Reason: the record also has `input_ids`, or `messages`
  // with a different text.
  std::vector<std::string> replaced;

  // Returns whether the last turn is a turn without an answer. Such a turn is not learned.
  bool ends_unanswered() const { return !messages.empty() && messages.back().role != kAssistant; }
  // Returns whether a turn of the user has neither text nor context.
  bool has_empty_question() const {
    return std::any_of(messages.begin(), messages.end(), [](const Message& turn) {
      return turn.role == kUser && is_blank(turn.text) && is_blank(turn.context) && turn.members.empty();
    });
  }
};

// The members of a record that its format can write.
enum class Members : std::uint8_t {
  kText,  // texts of turns
  kAll,   // also tools, tool calls, reasoning, documents and further members of messages, and any role
};

// Reads the next value of `json` and stores the conversation in `out`. Throws Error(kInvalid) at
// "name:line:column" for a value that is not a conversation: not a JSON object, an object with a duplicate
// key, a turn without role or text, an unknown role, members that the format cannot write, or a missing
// question or answer.
void read_conversation(JsonReader& json, Conversation& out, Members members = Members::kText);

}  // namespace primus::data
