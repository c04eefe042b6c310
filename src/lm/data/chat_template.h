// Chat templates in Jinja, limited to the conversation formats of conversation_format.h: detects the format
// of a model's own template, and writes templates for a format.
//
// Templates are not executed: the format is detected by the marks in the template's text. Other features of a
// template (tools, dates, dropping the reasoning of earlier turns) are ignored. A fine-tuned model therefore
// gets the template of its training format, so that transformers renders exactly the text of training.
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

// Returns a template for transformers' apply_chat_template, which then renders the text that
// ConversationWriter writes, or with add_generation_prompt the text of prompt(). (A question with a context
// becomes one text.)
std::string template_of(const ConversationStyle& style, const Tokenizer& tokenizer);

// Lists the template's features that are not supported, for a note: "tools, the date". Empty if none was
// found.
std::string left_out_of(std::string_view jinja);

struct ChosenStyle {
  ConversationStyle style;
  std::string why;  // the reason for the choice: "the model's chat template", "chosen", ...
};
// `wanted` is the name of a format, or auto. auto selects the format of the tokenizer's own template. Without
// a template, auto selects chatml if the tokenizer has the marks of chatml, else alpaca. If the named format
// is also the template's format, the result includes the template's own details (ConversationStyle).
// Error(kInvalid) for an unknown name; kUnsupported if auto finds a template of another format.
ChosenStyle choose_style(std::string_view wanted, const Tokenizer& tokenizer);

}  // namespace primus::data
