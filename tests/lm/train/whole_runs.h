// A fixture for whole runs of a tiny model on mock data. Each run is a separate experiment in one folder.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "lm/checkpoint/elements.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/train/trainer.h"

namespace primus::test {

class WholeRuns : public testing::Test {
 protected:
  // `model`: overrides that apply to every run.
  explicit WholeRuns(std::vector<std::string> model = {}) : model_(std::move(model)) {}

  // Runs the experiment `name` and returns its newest checkpoint.
  Path run(const std::string& name, const std::vector<std::string>& overrides) {
    const std::atomic<bool> stop = false;
    return *run_until(stop, name, overrides).checkpoint;
  }
  // Runs the experiment `name` until its end, or until `stop` is set.
  TrainingSummary run_until(const std::atomic<bool>& stop, const std::string& name,
                            const std::vector<std::string>& overrides) {
    std::vector<std::string> all = model_;
    all.insert(all.end(), overrides.begin(), overrides.end());
    const config::Experiment experiment = config::load_experiment_text(yaml_of(name), "experiment.yaml", all);
    Logger log(LogOptions{.folder = log_folder(name).string()});
    Trainer trainer(experiment, families_, log);
    trainer.prepare();
    return trainer.run(stop);
  }

  // Returns the experiment `name`, without overrides.
  std::string yaml_of(const std::string& name) const {
    return "work_group: w\nuser_name: u\nexp_name: " + name + "\nworkspace: " + folder_.path().string() + R"(
modules:
  pre_trainer:
    framework: native
    overrides:
      num_layers: 2
      hidden_size: 32
      ffn_hidden_size: 48
      num_attention_heads: 4
      seq_length: 32
      max_position_embeddings: 64
      tokenizer_type: ByteTokenizer
      mock_data: true
      micro_batch_size: 1
      global_batch_size: 2
      lr: 1.0e-2
      train_iters: 4
      save_interval: 2
      eval_iters: 0
)";
  }

  // Returns the error of a run that must not start: "MESSAGE / HINT".
  std::string refusal(const std::string& name, const std::vector<std::string>& overrides) {
    try {
      run(name, overrides);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return std::string(error.what()) + " / " + error.hint();
    }
    return "accepted";
  }

  // Returns one record per step.
  std::vector<nlohmann::json> metrics(const std::string& name) const {
    std::istringstream lines(read_file(folder_.path() / "w/u" / name / "metrics.jsonl"));
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }

  // Returns the value of `key` in each step.
  std::vector<double> losses(const std::string& name, const char* key = "lm_loss") const {
    std::vector<double> all;
    for (const nlohmann::json& step : metrics(name)) all.push_back(step.at(key));
    return all;
  }

  // Returns the numbers of a tensor; none if the folder does not have it.
  static std::vector<float> values(const SafetensorsFolder& folder, const std::string& name) {
    const std::optional<TensorView> tensor = folder.find(name);
    if (!tensor) return {};
    std::vector<float> all(tensor->data.size() / static_cast<std::size_t>(size_of(tensor->dtype)));
    to_float(tensor->dtype, tensor->data, all);
    return all;
  }

  // Returns the log of all starts of a run, with messages from INFO on.
  std::string log_of(const std::string& name) const { return read_file(log_folder(name) / "info.log"); }

  static std::string load(const Path& folder) { return "load=" + folder.string(); }

  const FamilyRegistry families_ = builtin_families();
  TemporaryFolder folder_;

 private:
  Path log_folder(const std::string& name) const { return folder_.path() / "logs" / name; }

  const std::vector<std::string> model_;
};

}  // namespace primus::test
