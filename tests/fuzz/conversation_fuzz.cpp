// Fuzzes conversations: any bytes give tokens in every format, with one mark per token, or an Error with a
// location.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "lm/data/conversation.h"
#include "lm/data/conversation_format.h"
#include "lm/tokenizer/simple.h"
#include "lm/tokenizer/text/unicode.h"
#include "quick.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace primus;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  static const auto tokenizer = make_byte_tokenizer();
  data::Conversation conversation;
  try {
    unicode::require_valid(text, "x.jsonl", 1);
    JsonReader json(text, "x.jsonl", {.python = true});
    data::read_conversation(json, conversation);
    json.finish();
  } catch (const Error& error) {
    if (error.location().empty()) __builtin_trap();
    return 0;
  }
  if (conversation.messages.empty()) {
    if (conversation.ids.size() != conversation.learned.size() || conversation.starts.empty())
      __builtin_trap();
    // A sequence starts where the previous one ends.
    const auto last = static_cast<size_t>(conversation.starts.back());
    if (last > 0 && last >= conversation.ids.size()) __builtin_trap();
    return 0;
  }
  for (const auto format : {data::ConversationFormat::kAlpaca, data::ConversationFormat::kSquad}) {
    for (const bool inline_bos : {false, true}) {
      data::LearnedTokens tokens;
      try {
        data::ConversationWriter(format, *tokenizer, inline_bos).write(conversation, tokens);
      } catch (const Error&) {
        continue;  // the format does not support these turns
      }
      if (tokens.ids.size() != tokens.learned.size()) __builtin_trap();
    }
  }
  return 0;
}
