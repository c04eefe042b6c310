// Reads and writes the keys of config.json for a model with one score per token instead of logits:
// transformers' classes for sequence classification with one label (reward models). Thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lm/model/config_reader.h"

namespace primus {

// Returns whether the model has one score per token. Throws Error(kUnsupported) for heads with several
// labels.
bool reads_scores(const ConfigReader& r, const nlohmann::json& root);

// Writes the keys of a model with scores into `root`. `architecture`: the class of the language model.
void write_scores(std::string architecture, nlohmann::json& root);

}  // namespace primus
