// Chat templates in Jinja, as far as conversation formats go: finds the format that a model's own template
// writes, and writes the template of a format.
//
// A template is a program; it is not run here. Its format is recognised by the marks in its text. What else
// it does (tools, dates, reasoning that is left out of earlier turns) is not. So a model that was fine-tuned
// gets the template of what it was taught: then transformers renders the very text that was learned.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lm/data/conversation_format.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

// Nothing where the format is none of ours. `tokenizer` says how the token is spelled that begins a text.
std::optional<ConversationStyle> style_of_template(std::string_view jinja, const Tokenizer& tokenizer);

// The template with which transformers' apply_chat_template renders what ConversationWriter writes, and with
// add_generation_prompt what prompt() does. (Of a question with a context, it renders the two as one text.)
std::string template_of(const ConversationStyle& style, const Tokenizer& tokenizer);

// Features of a template that are lost, for a note: "tools, the date". Empty: none is known.
std::string left_out_of(std::string_view jinja);

struct ChosenStyle {
  ConversationStyle style;
  std::string why;  // "the model's chat template", "sft_conversation_format", ...
};
// `wanted`: the name of a format, or auto: as the tokenizer's own template has it, else chatml where the
// tokenizer has its marks, else alpaca. A format that is named and is also the template's takes what the
// template has of its own. Error(kInvalid) for an unknown name; kUnsupported where the template writes none
// of these formats.
ChosenStyle choose_style(std::string_view wanted, const Tokenizer& tokenizer);

}  // namespace primus::data
