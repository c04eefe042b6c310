// Names that commands look for: of the problem of an experiment without training data, which a dry run plans
// all the same, and of the text that stands in for an experiment file ('train posttrain load=...').
#pragma once

namespace primus::config {

inline constexpr const char* kNoTrainingData = "there is no training data";
inline constexpr const char* kNoExperimentFile = "(no experiment file)";

}  // namespace primus::config
