// Two texts by which other code recognizes a case. One is the error about missing training data, which a dry
// run ignores. The other is the name of an experiment without a file, as in 'train posttrain load=...'.
#pragma once

namespace primus::config {

inline constexpr const char* kNoTrainingData = "there is no training data";
inline constexpr const char* kNoExperimentFile = "(no experiment file)";

}  // namespace primus::config
