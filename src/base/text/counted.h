// Numbers with their nouns, for messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace primus {

// Returns "1 GPU" for "GPU" and 1, and "2 GPUs" for 2. `noun` is a singular. Its plural ends with "es" after
// s, x, ch and sh ("2 batches"), with "ies" instead of a "y" after a consonant ("2 entries"), and else with
// "s".
std::string counted(std::int64_t count, std::string_view noun);

// Returns only the noun: "GPU" for 1, else "GPUs".
std::string noun_for(std::int64_t count, std::string_view noun);

}  // namespace primus
