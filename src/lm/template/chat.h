// Renders conversations as transformers' apply_chat_template(tokenize=False) does.
//
// Errors: Failure "ValueError" or "TypeError" with transformers' message for unsuitable conversations, and
// the errors of Template::render. Thread-safe.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "lm/template/template.h"

namespace primus::jinja {

struct ChatRequest {
  Value messages;                   // a list of dicts
  Value tools = Value::none();      // a list of JSON schemas, or none
  Value documents = Value::none();  // a list of dicts with title and text, or none
  bool add_generation_prompt = false;
  // Ends the text within the last message, so that the model continues it.
  bool continue_final_message = false;
  // Whether members of messages that are null reach the template, as with transformers'
  // render_jinja_template. apply_chat_template drops them.
  bool keep_null = false;
  // Further variables: the special tokens by name ("bos_token"), and arguments such as enable_thinking. A
  // later variable replaces an earlier one of the same name.
  Variables variables;
};

Rendered render_chat(const Template& chat_template, const ChatRequest& request, const std::tm& now,
                     const Limits& limits = {});

}  // namespace primus::jinja
