// Chat templates in Jinja, limited to the conversation formats of conversation_format.h: detects the format
// of a model's own template, and writes templates for a format.
//
// Templates are not executed: the format is detected by the special tokens in the template's text. Further
// features of a template (tools, dates, dropping the reasoning of earlier turns) are ignored. A fine-tuned
// model therefore gets the template of its training format, so that transformers renders exactly the text of
// training.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lm/data/conversation_format.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

// Returns nullopt if Primus does not support the template's format. `tokenizer` supplies the spelling of the
// BOS token.
std::optional<ConversationStyle> style_of_template(std::string_view jinja, const Tokenizer& tokenizer);

// Returns a template for transformers' apply_chat_template. The template renders the text that
// ConversationWriter::write encodes. With add_generation_prompt, the template renders the text that
// ConversationWriter::prompt encodes. (A question and its context are one text in the template.)
std::string template_of(const ConversationStyle& style, const Tokenizer& tokenizer);

// Returns a list of the template's features that Primus ignores, for a message: "tools, the date". Empty if
// the template has none of the known features.
std::string left_out_of(std::string_view jinja);

struct ChosenStyle {
  ConversationStyle style;
  std::string why;  // reason of the choice: "the model's chat template", "chosen", ...
};
// `wanted` is the name of a format, or auto. auto selects the format of the tokenizer's own template. Without
// a template, auto selects chatml if the tokenizer has the special tokens of chatml, else alpaca. If the
// named format is also the template's format, the result includes the template's own details
// (ConversationStyle). Error(kInvalid) for an unknown name; kUnsupported if the template's format is unknown
// and `wanted` is auto.
ChosenStyle choose_style(std::string_view wanted, const Tokenizer& tokenizer);

}  // namespace primus::data
