// The problem of an experiment that names no data to train on. A dry run plans without data.
#pragma once

namespace primus::config {

inline constexpr const char* kNoTrainingData = "there is no training data";

}  // namespace primus::config
