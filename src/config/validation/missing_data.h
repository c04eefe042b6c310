// Two texts by which other code recognizes a case. One is the error about missing training data, which a dry
// run ignores. The other is the name of an experiment without a file, as in 'train posttrain load=...'.
#pragma once

namespace primus::config {

inline constexpr const char* kNoTrainingData = "there is no training data";
// `conversations`: whether sft_dataset_name is set, although the stage trains on text.
constexpr const char* hint_on_missing_data(bool conversations) {
  return conversations ? "stage pretrain does not read sft_dataset_name: set stage: sft (config: "
                         "sft_trainer.yaml sets it)"
                       : "set data_path or train_data_path, or mock_data: true for random tokens; --dry-run "
                         "plans without";
}
inline constexpr const char* kNoExperimentFile = "(no experiment file)";

}  // namespace primus::config
