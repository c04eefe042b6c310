// Words of other programs ("serve", "dpo", "gguf") and where to find what they mean: the command that does it
// here, or the program that does it where Primus does not.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus::config {

// One sentence for a person who asked for `word`; nullopt for a word that the table lacks. Capitals do not
// count, nor whether '-' or '_' joins the parts of a word.
std::optional<std::string> answer_for(std::string_view word);

// All words of the table, for a test.
std::vector<std::string_view> words_from_elsewhere();

}  // namespace primus::config
