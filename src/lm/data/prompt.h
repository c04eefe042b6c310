// One record of prompts, read from a JSON object: a question whose answer the model generates.
//
// The prompt of a record is the value of the first of these keys that is not null
// (docs/formats/conversations.md):
//   prompt                    a text, a message or a list of messages; as in TRL, the last message is not an
//                             answer
//   messages, conversations   a list of messages; an answer at its end is not part of the prompt
//   question, instruction     a text; optionally input or context (text that the question refers to), history
// A text is one message of the user. Optional keys: system, tools, documents and chat_template_kwargs, as in
// conversation.h. All other keys are columns, which reward functions may read.
#pragma once

#include <string>
#include <vector>

#include "base/text/json_reader.h"
#include "lm/data/conversation.h"

namespace primus::data {

struct Prompt {
  Conversation conversation;         // the turns before the answer; at least one
  std::vector<std::string> columns;  // keys that are not part of the prompt and whose value is not null
};

// Reads the next value of `json` and stores the record in `out`. `members`: as in read_conversation(). Throws
// Error(kInvalid) for a value without a prompt, with the position of the object, or without a position if the
// error is inside the prompt.
void read_prompt(JsonReader& json, Prompt& out, Members members = Members::kText);

}  // namespace primus::data
