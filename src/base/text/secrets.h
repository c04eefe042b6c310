// Detects secrets by the name of their variable and by the form of their value. Secrets are passed in the
// environment or in a file, but never on a command line: every user of a machine can read command lines. The
// screen and the files of a run do not show secrets.
#pragma once

#include <string>
#include <string_view>

namespace primus {

inline constexpr std::string_view kRedacted = "<redacted>";

// Returns whether the words of a variable's name show that its value is a secret: HF_TOKEN, WANDB_API_KEY,
// DB_PASSWORD, GITHUB_AUTH. A variable that holds the name of a file is not secret: PRIMUS_JOB_TOKEN_FILE.
bool is_secret_name(std::string_view name);

// Returns whether a value is a secret by its form: a URL with a password or a token ("http://me:word@proxy"),
// an assignment to a secret name ("--token=word", "?access_token=word"), an HTTP credential ("Bearer word"),
// or a token with a known prefix ("hf_...").
bool is_secret_value(std::string_view value);

// Returns whether the name or the value is secret.
bool is_secret(std::string_view name, std::string_view value);

// Returns the text to show for `value` of the variable `name`: kRedacted if it is a secret.
std::string shown_value(std::string_view name, std::string_view value);

// Returns the text with kRedacted in place of values of secret names ("hf_token: word", "\"api_key\":
// \"word\"",
// "--password word") and of words that are secrets by their form. Linear in the size of the text. Numbers,
// true, false and null are no secrets, so JSON remains JSON.
std::string without_secrets(std::string_view text);

}  // namespace primus
