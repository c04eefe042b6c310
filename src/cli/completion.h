// Completion of the word being typed in a shell. The shell's script is short. The script passes the words to
// `primus __complete`, which answers from the declarations that help also uses. So an installed script stays
// valid when the program changes.
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
  std::vector<Suggestion> words;  // matches for the typed prefix
  Paths paths = Paths::kNone;  // kind of paths that the shell adds; in a word '--option=...', the path begins
                               // after the '='
};

// Completes the last of `words`, which may be empty. `words`: the command line without the program name.
Completion complete(std::span<const std::string> words);

// Returns the output of `primus __complete WORD...`: a line "word<tab>meaning" per match, then a line with
// the kind of paths that also match: ":files", ":folders" or ":none".
std::string completion_reply(std::span<const std::string> words);

// Returns the script for `shell`, which is one of kShells.
std::string_view completion_script(std::string_view shell);

}  // namespace primus::cli
