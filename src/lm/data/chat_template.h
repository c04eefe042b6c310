// Chooses the format of conversations for a model: its own chat template (model_template.h), or one of the
// formats of conversation_format.h. Also writes chat templates in Jinja for these formats, and recognises
// their marks in a model's template.
//
// A model that is fine-tuned in one of the formats gets the template of that format, so that transformers
// renders exactly the text of training. Such a template is recognised when the model is loaded again: its
// conversations are then written by the format, with the same tokens as before.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lm/data/conversation_format.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

// Returns the format whose special tokens the template's text contains, with its details. The template may
// have further features, which the format ignores (tools, dates, dropping the reasoning of earlier turns).
// Returns nullopt if none of the formats fits. `tokenizer` supplies the spelling of the BOS token.
std::optional<ConversationStyle> style_of_template(std::string_view jinja, const Tokenizer& tokenizer);

// Returns a template for transformers' apply_chat_template. The template renders the text that
// ConversationWriter::write encodes. With add_generation_prompt, the template renders the text that
// ConversationWriter::prompt encodes. (A question and its context are one text in the template.) For
// kTemplate, returns the tokenizer's own template.
std::string template_of(const ConversationStyle& style, const Tokenizer& tokenizer);

// Returns a list of the template's features that the formats ignore, for a message: "tools, the date". Empty
// if the template has none of the known features.
std::string left_out_of(std::string_view jinja);

struct ChosenStyle {
  ConversationStyle style;
  std::string why;  // reason of the choice: "the model's chat template", "chosen", ...
};
// `wanted` is the name of a format, or auto. auto selects the tokenizer's own template. If template_of()
// wrote this template for a format, the result is that format, else kTemplate. Without a template, auto
// selects chatml if the tokenizer has the special tokens of chatml, else alpaca. If the named format is also
// the template's format, the result includes the template's own details (ConversationStyle). Throws
// Error(kInvalid) for an unknown name, and for a broken template if `wanted` is auto.
ChosenStyle choose_style(std::string_view wanted, const Tokenizer& tokenizer);

// The name of the format of prompts that are plain texts, which the model continues.
inline constexpr std::string_view kPlainPrompts = "none";
// Returns the style of prompts whose answers the model generates in training. Returns nullopt, which means
// plain texts, if `wanted` is kPlainPrompts, or if `wanted` is "auto" and the tokenizer has no chat template.
// Errors: as choose_style().
std::optional<ChosenStyle> choose_prompt_style(std::string_view wanted, const Tokenizer& tokenizer);

}  // namespace primus::data
