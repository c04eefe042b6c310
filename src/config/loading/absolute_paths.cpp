#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"
#include "config/trainer_config.h"

namespace primus::config {
namespace fs = std::filesystem;
namespace {

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string absolute(const std::string& path) {
  std::error_code error;
  const fs::path result = fs::absolute(path, error);
  return error ? path : result.lexically_normal().string();
}

// Changes only existing paths, because hub names of models look like relative paths.
void make_absolute_if_there(std::optional<std::string>& path) {
  if (path && is_there(*path)) path = absolute(*path);
}

// Makes the paths in `entries` absolute. Entries are paths, prefixes of .bin and .idx files, globs, or
// weights of a blend.
void make_absolute(std::vector<std::string>& entries) {
  for (std::string& entry : entries) {
    double weight = 0;
    const char* const end = entry.data() + entry.size();
    const auto [stop, error] = std::from_chars(entry.data(), end, weight);
    const bool is_weight = error == std::errc() && stop == end && !is_there(entry);
    if (!is_weight && !entry.empty()) entry = absolute(entry);
  }
}

}  // namespace

Experiment with_absolute_paths(Experiment experiment) {
  TrainerConfig& c = experiment.trainer;
  experiment.workspace = absolute(experiment.workspace);
  for (auto* path : {&c.save, &c.data_cache_path, &c.tensorboard_dir}) {
    if (*path) *path = absolute(**path);
  }
  for (auto* path :
       {&c.load, &c.pretrained_checkpoint, &c.hf_path, &c.tokenizer_model, &c.vocab_file, &c.merge_file,
        &c.sft_dataset_name, &c.teacher_model_name_or_path, &c.value_load, &c.reference_adapters})
    make_absolute_if_there(*path);
  for (std::string& function : c.reward) {
    constexpr std::string_view kModel = "model:";
    if (!function.starts_with(kModel)) continue;
    std::optional<std::string> folder = function.substr(kModel.size());
    make_absolute_if_there(folder);
    function = std::string(kModel) + *folder;
  }
  for (auto* paths : {&c.data_path, &c.train_data_path, &c.valid_data_path, &c.test_data_path})
    make_absolute(*paths);
  return experiment;
}

}  // namespace primus::config
