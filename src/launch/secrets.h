// Which variables are secrets. The value of a secret is handed on in the environment or in a file, never on a
// command line, which every user of a machine can read; and it is never shown.
#pragma once

#include <string>
#include <string_view>

namespace primus::launch {

inline constexpr std::string_view kRedacted = "<redacted>";

// By the name: HF_TOKEN, WANDB_API_KEY, DB_PASSWORD. Names of files that hold a secret are none:
// PRIMUS_JOB_TOKEN_FILE.
bool is_secret_name(std::string_view name);

// What may be shown of `value`, the value of the variable `name`: kRedacted for a secret, and for an address
// with a password in it ("http://me:word@proxy").
std::string shown_value(std::string_view name, std::string_view value);

// "NAME=VALUE" split at the first '='. Throws Error(kInvalid), which does not repeat a secret, where `text`
// is none; `option`: what it was given to, for the message.
struct Assignment {
  std::string name, value;
};
Assignment parse_assignment(std::string_view text, std::string_view option);

// A name that a shell could set: [A-Za-z_][A-Za-z0-9_]*.
bool is_variable_name(std::string_view name);

}  // namespace primus::launch
