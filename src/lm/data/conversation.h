// One conversation to learn from, as a JSON object says it: turns of text, or tokens that are made already.
//
// Accepted records (docs/formats/conversations.md):
//   messages         [{"role": "user", "content": "..."}, ...], or "conversations" with "from" and "value";
//                    "system" beside them goes in front. The content of a message is text, null, or a list of
//                    {"type": "text", "text": ...}; an answer with "weight": 0, "train": false or "loss":
//                    false is not learned
//   a single turn    instruction, prompt or question; response, output, answer, completion or answers;
//                    perhaps input or context (what the question is about), system, and history: earlier
//                    turns as [[question, answer], ...]. {"input", "output"} alone are question and answer.
//                    Of several names the first that is not null counts
//   tokens           input_ids; perhaps loss_mask (1 where the token is to be learned; without it all are)
//   and
//                    seq_start_id (where each of several conversations begins)
// Keys that would change the text and are not written by any format here (tools, tool_calls, function_call,
// reasoning_content, images ...) are refused at their place. All other keys are listed in `unused`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/json_reader.h"

namespace primus::data {

inline constexpr std::string_view kSystem = "system", kUser = "user", kAssistant = "assistant";

struct Message {
  std::string role;     // kSystem, kUser, kAssistant, or one that only messages have: tool, developer ...
  std::string text;     // may be empty
  std::string context;  // of a user's turn: what the question is about; empty: none
  bool learned = true;  // of an assistant's turn
};

// The beginning of a conversation: a system's turn, or nothing where its text is empty.
inline std::vector<Message> with_system(const std::string& text) {
  if (text.empty()) return {};
  return {{std::string(kSystem), text, {}}};
}

struct Conversation {
  std::vector<Message> messages;  // empty: the tokens are there
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learned;  // one per id
  std::vector<std::int64_t> starts;   // within `ids`, 0 first; empty where messages are there
  // Keys with a value that were read past, each once: "id", or "messages.name" for one of a message.
  std::vector<std::string> unused;
};

// Replaces `out` by what the next value of `json` says. Error(kInvalid) at "name:line:column" for anything
// but such an object: another type, a turn without a role or text, a role that nobody has, calls of tools
// (no format here writes them), no question, no answer.
void read_conversation(JsonReader& json, Conversation& out);

}  // namespace primus::data
