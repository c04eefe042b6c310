// One training conversation, read from a JSON object: turns of text, or token ids.
//
// Accepted records (docs/formats/conversations.md):
//   messages         [{"role": "user", "content": "..."}, ...], or "conversations" with "from" and "value";
//                    a "system" key next to them becomes the first turn. The content of a message is text,
//                    null, or a list of {"type": "text", "text": ...}; an answer with "weight": 0,
//                    "train": false or "loss": false is not learned
//   a single turn    instruction, prompt or question; response, output, answer, completion or answers;
//                    optionally input or context (what the question is about), system, and history: earlier
//                    turns as [[question, answer], ...]. If only "input" and "output" are present, they are
//                    question and answer. If several names are present, the first that is not null counts
//   tokens           input_ids; optionally loss_mask (1 where the token is learned; default: all) and
//                    seq_start_id (starts of several conversations)
// Keys that would change the text but that no format supports (tools, tool_calls, function_call,
// reasoning_content, images ...) are errors with their position in the file. All other keys are listed in
// `unused`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/json_reader.h"

namespace primus::data {

inline constexpr std::string_view kSystem = "system", kUser = "user", kAssistant = "assistant";

struct Message {
  std::string role;     // kSystem, kUser or kAssistant; in `messages` also tool, developer ...
  std::string text;     // the text; may be empty
  std::string context;  // for a user turn: what the question is about; may be empty
  bool learned = true;  // whether an assistant turn is learned
};

// Returns the start of a conversation: one system turn, or no turn if `text` is empty.
inline std::vector<Message> with_system(const std::string& text) {
  if (text.empty()) return {};
  return {{std::string(kSystem), text, {}}};
}

struct Conversation {
  std::vector<Message> messages;  // empty if the record holds tokens
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learned;  // for each id, 1 if it is learned, else 0
  // Start offsets of conversations in `ids`, beginning with 0; empty if the record holds messages.
  std::vector<std::int64_t> starts;
  // Keys with a value that was ignored, each listed once: "id", or "messages.name" for a key of a message.
  std::vector<std::string> unused;
  // Keys of questions and answers that were ignored because the record also has `input_ids`, or `messages`
  // that do not contain the same text.
  std::vector<std::string> replaced;

  // Whether the last turn has no answer. Such a turn is not learned.
  bool ends_unanswered() const { return !messages.empty() && messages.back().role != kAssistant; }
};

// Replaces `out` by the next value of `json`. Throws Error(kInvalid) at "name:line:column" for a value that
// is no conversation: another JSON type, a duplicate key in an object, a turn without role or text, an
// unknown role, tool calls (no format supports them), or a missing question or answer.
void read_conversation(JsonReader& json, Conversation& out);

}  // namespace primus::data
