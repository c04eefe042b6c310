// Compares the interpreter with results that transformers computed, which are stored in files.
//
// Two forms of files (JSON):
//   a list of programs   {"template": ..., "data": {...}, "text": ... | "error": {"type", "message"}}
//   chat templates       {"now": "2026-02-03T04:05:06",
//                         "conversations": {NAME: {"messages", "tools", "documents", "kwargs",
//                                                  "continue_final_message"}},
//                         "templates": {NAME: {"template", "bos_token", "eos_token", "pad_token",
//                                              "renders": [{"conversation", "add_generation_prompt",
//                                                           "text" | "error", "generation_spans"}]}}}
// "generation_spans" are those of transformers' render_jinja_template, which keeps members of messages that
// are null; "text" is that of apply_chat_template, which drops them. A case holds if the text and the
// generation spans are equal, or if both fail. The message of a TemplateError, which templates raise
// themselves, must be equal, too.
//
// Errors: Error(kInvalid) at a position if the file has neither form. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lm/template/budget.h"

namespace primus::jinja {

struct FailedCase {
  std::string name;      // "llama2, conversation tools, with a generation prompt"
  std::string expected;  // the text, or "error TYPE: MESSAGE"
  std::string found;
};
struct CaseReport {
  std::int64_t cases = 0;
  std::vector<FailedCase> failed;
  std::int64_t other_errors = 0;  // cases that hold because both fail, but with different errors
};

// `name`: the file's name in errors.
CaseReport check_cases(std::string_view json, std::string_view name, const Limits& limits = {});

}  // namespace primus::jinja
