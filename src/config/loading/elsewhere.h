// Terms of other programs ("serve", "dpo", "gguf") and the Primus commands for the same purpose. If Primus
// has no such command, names another program.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus::config {

// Returns one sentence for a user who asked for `word`; nullopt for an unknown word. A word that has another
// meaning after the name of a group of commands begins with that name: "data-download". Ignores case and
// whether
// '-' or '_' joins the parts of a word.
std::optional<std::string> answer_for(std::string_view word);

// Returns all words of the table, for a test.
std::vector<std::string_view> words_from_elsewhere();

}  // namespace primus::config
