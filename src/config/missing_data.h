// Two texts with which commands compare: the problem "no training data", which does not prevent a dry run,
// and the text that replaces an experiment file in 'train posttrain load=...'.
#pragma once

namespace primus::config {

inline constexpr const char* kNoTrainingData = "there is no training data";
inline constexpr const char* kNoExperimentFile = "(no experiment file)";

}  // namespace primus::config
