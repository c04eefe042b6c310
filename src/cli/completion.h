// What a shell offers for the word that is being typed. The shells' scripts are short: they hand the words to
// `primus __complete`, which answers from the declarations that help is made of, so that an installed script
// stays right when the program changes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/grammar.h"

namespace primus::cli {

inline constexpr std::string_view kCompleteWord = "__complete";
inline constexpr std::string_view kShells[] = {"bash", "zsh", "fish"};

struct Completion {
  std::vector<Suggestion> words;  // they begin with what was typed
  Paths paths = Paths::kNone;     // what the shell adds: for a typed '--option=', behind the '='
};

// `words`: the command line without the program's name; the last one is being typed and may be empty.
Completion complete(std::span<const std::string> words);

// The answer to `primus __complete WORD...`: a line "word<tab>meaning" for each, then one that says which
// paths fit as well: ":files", ":folders" or ":none".
std::string completion_reply(std::span<const std::string> words);

// The script that a shell of kShells reads.
std::string_view completion_script(std::string_view shell);

}  // namespace primus::cli
