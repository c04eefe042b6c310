// Whole runs with multi-token prediction: what they report and save, that they go on bit for bit, and what
// happens to it when weights are loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/train/trainer.h"

namespace primus::test {
namespace {

using testing::HasSubstr;

class MtpRuns : public testing::Test {
 protected:
  // Runs exp_name `name` and gives its newest checkpoint.
  Path run(const std::string& name, const std::vector<std::string>& overrides) {
    const std::string yaml =
        "work_group: w\nuser_name: u\nexp_name: " + name + "\nworkspace: " + folder_.path().string() + R"(
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
    const config::Experiment experiment = config::load_experiment_text(yaml, "experiment.yaml", overrides);
    const FamilyRegistry families = builtin_families();
    Logger log(LogOptions{});
    Trainer trainer(experiment, families, log);
    trainer.prepare();
    const std::atomic<bool> stop = false;
    return *trainer.run(stop).checkpoint;
  }
  std::string refusal(const std::string& name, const std::vector<std::string>& overrides) {
    try {
      run(name, overrides);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return std::string(error.what()) + " / " + error.hint();
    }
    return "accepted";
  }
  // (loss, mtp_loss) of each step; -1 where there is none.
  std::vector<std::pair<double, double>> losses(const std::string& name) const {
    std::istringstream lines(read_file(folder_.path() / "w/u" / name / "metrics.jsonl"));
    std::vector<std::pair<double, double>> all;
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      all.emplace_back(json.at("lm_loss"), json.value("mtp_loss", -1.0));
    }
    return all;
  }
  static bool has(const Path& checkpoint, const std::string& tensor) {
    return CheckpointReader::open(checkpoint).find(TensorPart::kModel, tensor).has_value();
  }
  static std::string load(const Path& folder) { return "load=" + folder.string(); }

  TemporaryFolder folder_;
};

TEST_F(MtpRuns, ReportSaveAndGoOn) {
  const Path whole = run("whole", {"mtp_num_layers=1"});
  for (const auto& [loss, mtp_loss] : losses("whole")) {
    EXPECT_GT(mtp_loss, 1);
    EXPECT_NE(mtp_loss, loss);
  }
  EXPECT_TRUE(has(whole, "model.layers.2.eh_proj.weight"));
  EXPECT_TRUE(has(whole, "model.layers.2.embed_tokens.weight"));
  EXPECT_THAT(read_file(whole / "config.json"), HasSubstr("\"num_nextn_predict_layers\": 1"));

  run("twice", {"mtp_num_layers=1", "exit_interval=2"});
  EXPECT_THAT(refusal("twice", {}), HasSubstr("num_nextn_predict_layers"));
  EXPECT_THAT(refusal("twice", {"mtp_num_layers=2"}), HasSubstr("num_nextn_predict_layers"));
  const Path twice = run("twice", {"mtp_num_layers=1"});
  EXPECT_EQ(losses("twice"), losses("whole"));
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(read_file(twice / file), read_file(whole / file)) << file;
}

TEST_F(MtpRuns, LoadedWeightsAreTrainedWithItOrWithout) {
  const Path with = run("with", {"mtp_num_layers=1"});
  const Path without = run("without", {load(with), "finetune=true"});
  EXPECT_EQ(losses("without").front().second, -1);
  EXPECT_FALSE(has(without, "model.layers.2.eh_proj.weight"));
  EXPECT_THAT(read_file(without / "config.json"), Not(HasSubstr("num_nextn_predict_layers")));

  // With the weights loaded, multi-token prediction is as good as it was.
  run("again", {load(with), "finetune=true", "mtp_num_layers=1"});
  EXPECT_LT(losses("again").front().second, losses("with").front().second);
  EXPECT_THAT(refusal("more", {load(with), "finetune=true", "mtp_num_layers=2"}),
              HasSubstr("mtp_num_layers"));
  EXPECT_THAT(refusal("none", {load(without), "finetune=true", "mtp_num_layers=1"}),
              HasSubstr("set mtp_num_layers to the number that they have"));
}

// Weights as Hugging Face has them, without our manifest.
TEST_F(MtpRuns, PublishedWeightsMustHaveIt) {
  const Path without = run("without", {});
  const Path model = folder_.path() / "model";
  make_folders(model);
  for (const char* file : {"config.json", "model.safetensors"})
    write_file(model / file, read_file(without / file));
  EXPECT_THAT(refusal("none", {load(model), "mtp_num_layers=1"}), HasSubstr("mtp_num_layers"));
}

}  // namespace
}  // namespace primus::test
