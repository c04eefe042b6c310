// Helpers for tests that train a tiny model and read the run's files.
#pragma once

#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files/file.h"

namespace primus::test {

// Returns the command that trains in `workspace`, with steps of milliseconds. `more` are overrides and
// options.
inline std::vector<std::string> train(const Path& workspace, const std::vector<std::string>& more) {
  std::vector<std::string> words{"train",
                                 "pretrain",
                                 "--config",
                                 PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml",
                                 "workspace=" + workspace.string(),
                                 "work_group=w",
                                 "user_name=u",
                                 "exp_name=run",
                                 "micro_batch_size=2",
                                 "global_batch_size=4",
                                 "seq_length=64",
                                 "lr_warmup_iters=2",
                                 "bf16=false",
                                 "num_threads=1"};  // more threads slow down a busy machine
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline Path run_folder(const Path& workspace, const std::string& name = "run") {
  return workspace / "w" / "u" / name;
}

struct Step {
  double loss, gradient_norm;
  bool operator==(const Step&) const = default;
};

// Returns the metrics of each iteration in metrics.jsonl. A torn, repeated or unordered line becomes
// iteration -1.
inline std::map<std::int64_t, Step> losses(const Path& run) {
  std::map<std::int64_t, Step> steps;
  const Path file = run / "metrics.jsonl";
  // Opens the file once, because a run that starts over may rename it at any moment.
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const auto line = nlohmann::json::parse(text.substr(begin, end - begin), nullptr, false);
    const bool good = end != std::string::npos && line.is_object();
    const std::int64_t iteration = good ? line.at("iteration").get<std::int64_t>() : -1;
    const bool in_order = steps.empty() || iteration == steps.rbegin()->first + 1;
    steps[in_order ? iteration : -1] = good ? Step{line.at("lm_loss"), line.at("grad_norm")} : Step{};
    begin = end == std::string::npos ? text.size() : end + 1;
  }
  return steps;
}

// Returns the bytes of a checkpoint's model and optimizer states.
inline std::string final_weights(const Path& run, int iteration) {
  const Path folder =
      run / "checkpoints" /
      ("iter_" + std::string(7 - std::to_string(iteration).size(), '0') + std::to_string(iteration));
  std::string all;
  for (const std::string& name : Env::posix().list(folder)) {
    if (name.ends_with(".safetensors")) all += read_file(folder / name);
  }
  return all;
}

}  // namespace primus::test
