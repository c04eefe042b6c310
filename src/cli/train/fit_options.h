// The options --fit and --fit-memory of training commands.
#pragma once

#include <string>
#include <vector>

#include "lm/train/trainer.h"

namespace primus::cli {

// Parses the value of --fit-memory: "80GiB" or "90%". Throws Error(kInvalid).
Trainer::FitMemory parse_fit_memory(const std::string& text);

// Returns a command's words without --fit and without --fit-memory and its value.
std::vector<std::string> without_fit(const std::vector<std::string>& words);

}  // namespace primus::cli
