// Fuzzes conversations: any bytes give tokens in every format and by a chat template, with one mark per
// token, or an Error with a location.
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "lm/data/conversation.h"
#include "lm/data/conversation_format.h"
#include "lm/data/model_template.h"
#include "lm/tokenizer/simple.h"
#include "lm/tokenizer/text/unicode.h"
#include "quick.h"

namespace {

// Writes the conversation by a chat template that uses all members of messages.
void write_by_template(std::string_view text, const primus::Tokenizer& tokenizer) {
  using namespace primus;
  static const data::ConversationStyle style{
      .format = data::ConversationFormat::kTemplate,
      .own = std::make_shared<const data::ModelTemplate>(ChatTemplates{
          .all = {
              {"default",
               "{{ tools }}{% for m in messages %}{{ m | tojson if m.role != 'assistant' }}{{ m.content }}"
               "{{ m.tool_calls }}{% endfor %}"}}})};
  data::Conversation conversation;
  try {
    JsonReader json(text, "x.jsonl", {.python = true});
    data::read_conversation(json, conversation, data::Members::kAll);
    json.finish();
    if (conversation.messages.empty()) return;
    data::LearnedTokens tokens;
    data::ConversationWriter(style, tokenizer).write(conversation, tokens);
    const bool starts = !tokens.starts.empty() && tokens.starts.front() == 0;
    if (tokens.ids.size() != tokens.learned.size() || !starts) __builtin_trap();
  } catch (const Error&) {
    return;  // the template refuses these turns
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace primus;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  static const auto tokenizer = make_byte_tokenizer();
  data::Conversation conversation;
  try {
    unicode::require_valid(text, "x.jsonl", 1);
    write_by_template(text, *tokenizer);
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
