// One record of preference data, read from a JSON object: a prompt with a chosen and a rejected answer, or a
// prompt with one answer and a label.
//
// Accepted records (docs/formats/conversations.md), as in TRL:
//   pairs      chosen and rejected, with prompt (also question or instruction). Without a prompt, chosen and
//              rejected are complete conversations or texts. Their common beginning is the prompt
//   scored     the same as pairs, for reward models
//   labelled   completion and label (true: good, false: bad), with prompt
// A prompt or an answer is a text, a message, or a list of messages as in conversation.h. A text is one
// message. If chosen and rejected begin with the turns of a prompt, a prompt given as text is ignored.
// Optional keys: system, tools (as in conversation.h), and margin (a number): by how much the score of the
// chosen answer should exceed the score of the rejected answer. Only scored pairs use the margin; for other
// records, the key is listed as unused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/json_reader.h"
#include "lm/data/conversation.h"

namespace primus::data {

// The kind of records that an objective learns from.
enum class PreferenceKind : std::uint8_t {
  kPairs,
  kScored,    // pairs with margins
  kLabelled,  // pairs are accepted, too: a chosen answer is good, and a rejected answer is bad
};

struct Preference {
  // A prompt followed by an answer. Only the messages of the answer are learned.
  struct Text {
    Conversation conversation;
    bool preferred = true;  // whether the answer is chosen, or good
  };
  std::vector<Text> texts;  // a pair: chosen, then rejected; a labelled record: one text
  float margin = 0;
  // Keys whose value was ignored, each listed once.
  std::vector<std::string> unused;
};

// Reads the next value of `json` and stores the record in `out`. `members`: as in read_conversation(). Throws
// Error(kInvalid) for a value that is not a record of this kind, with the position of the object, or without
// a position if an error is inside a message.
void read_preference(JsonReader& json, PreferenceKind kind, Preference& out,
                     Members members = Members::kText);

}  // namespace primus::data
