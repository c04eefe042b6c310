#include "lm/generate/preset_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "config/experiment.h"
#include "config/trainer_config.h"

namespace primus {

ModelConfig preset_model(const std::string& name, const FamilyRegistry& families,
                         std::optional<std::int64_t> vocab) {
  const std::string text =
      "work_group: info\nuser_name: info\nexp_name: info\nworkspace: .\nmodules:\n  pre_trainer:\n    model: "
      "'" +
      name + "'\n    overrides: {mock_data: true}\n";
  const std::string here = fmt::format("an experiment with only '{}'", name);
  try {
    const config::Experiment experiment = config::load_experiment_text(text, here);
    ModelConfig model = model_config_of(experiment, vocab, families);
    model.max_positions = experiment.trainer->max_position_embeddings;
    return model;
  } catch (const Error& error) {
    Error known(
        error.kind(),
        fmt::format("'{}' is neither a folder nor the preset of a complete model: {}", name, error.what()),
        error.hint());
    // A single problem is not in the user's files and needs no location. A message about several problems
    // contains the location of each problem.
    if (!error.location().starts_with(here)) known.at(error.location(), error.snippet());
    throw known;
  }
}

std::string preset_of(const std::string& name) {
  constexpr std::pair<const char*, const char*> kNames[] = {{"v2_lite", "deepseek_v2_lite"},
                                                            {"v2", "deepseek_v2"},
                                                            {"v3", "deepseek_v3"},
                                                            {"mistral_8x7b", "mixtral_8x7B"},
                                                            {"mistral_8x22b", "mixtral_8x22B"},
                                                            {"llama2_7b", "llama2_7B"},
                                                            {"llama2_70b", "llama2_70B"},
                                                            {"llama3_8b", "llama3_8B"},
                                                            {"llama3_70b", "llama3_70B"},
                                                            {"llama3.1_8b", "llama3.1_8B"},
                                                            {"llama3.1_70b", "llama3.1_70B"},
                                                            {"llama3.1_405b", "llama3.1_405B"},
                                                            {"deepseek_v2_lite", "deepseek_v2_lite"},
                                                            {"deepseek_v2", "deepseek_v2"},
                                                            {"deepseek_v3", "deepseek_v3"}};
  std::string small = name;
  std::transform(small.begin(), small.end(), small.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const auto& [theirs, ours] : kNames)
    if (small == theirs) return ours;
  return name;
}

bool names_a_preset(const std::string& text) {
  return text.find('/') == std::string::npos && !Env::posix().status(text);
}

std::vector<std::string> folders_among(const std::vector<std::string>& values) {
  std::vector<std::string> folders;
  std::ranges::copy_if(values, std::back_inserter(folders),
                       [](const std::string& value) { return !names_a_preset(value); });
  return folders;
}

}  // namespace primus
