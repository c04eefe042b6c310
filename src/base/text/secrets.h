// Finds secrets by the name of their variable and by the look of their value. A secret is handed on in the
// environment or in a file, never on a command line, which every user of a machine can read, and no screen
// and no file of a run shows it.
#pragma once

#include <string>
#include <string_view>

namespace primus {

inline constexpr std::string_view kRedacted = "<redacted>";

// By the words of the name: HF_TOKEN, WANDB_API_KEY, DB_PASSWORD, GITHUB_AUTH. The name of a file that holds
// a secret is not one: PRIMUS_JOB_TOKEN_FILE.
bool is_secret_name(std::string_view name);

// By the value alone: an address with a password or a token in it ("http://me:word@proxy"), an assignment to
// a secret name ("--token=word", "?access_token=word"), an HTTP credential ("Bearer word"), or a token with a
// known beginning ("hf_...").
bool is_secret_value(std::string_view value);

// Either of them.
bool is_secret(std::string_view name, std::string_view value);

// The text to show for `value` of the variable `name`: kRedacted for a secret.
std::string shown_value(std::string_view name, std::string_view value);

}  // namespace primus
