// Tests whole runs with multi-token prediction: reports, checkpoints, resumption bit for bit, and loading of
// weights with and without the modules of multi-token prediction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lm/checkpoint/checkpoint.h"
#include "lm/train/whole_runs.h"

namespace primus::test {
namespace {

using testing::HasSubstr;

class MtpRuns : public WholeRuns {
 protected:
  // Returns (loss, mtp_loss) of each step; -1 if there is none.
  std::vector<std::pair<double, double>> losses(const std::string& name) const {
    std::vector<std::pair<double, double>> all;
    for (const nlohmann::json& step : metrics(name))
      all.emplace_back(step.at("lm_loss"), step.value("mtp_loss", -1.0));
    return all;
  }
  static bool has(const Path& checkpoint, const std::string& tensor) {
    return CheckpointReader::open(checkpoint).find(TensorPart::kModel, tensor).has_value();
  }
};

TEST_F(MtpRuns, ReportSaveAndResume) {
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

TEST_F(MtpRuns, LoadedWeightsAreTrainedWithOrWithoutMtp) {
  const Path with = run("with", {"mtp_num_layers=1"});
  const Path without = run("without", {load(with), "finetune=true"});
  EXPECT_EQ(losses("without").front().second, -1);
  EXPECT_FALSE(has(without, "model.layers.2.eh_proj.weight"));
  EXPECT_THAT(read_file(without / "config.json"), Not(HasSubstr("num_nextn_predict_layers")));

  // With loaded weights, multi-token prediction is as accurate as at the end of the run that saved the
  // weights.
  run("again", {load(with), "finetune=true", "mtp_num_layers=1"});
  EXPECT_LT(losses("again").front().second, losses("with").front().second);
  EXPECT_THAT(refusal("more", {load(with), "finetune=true", "mtp_num_layers=2"}),
              HasSubstr("mtp_num_layers"));
  EXPECT_THAT(refusal("none", {load(without), "finetune=true", "mtp_num_layers=1"}),
              HasSubstr("set mtp_num_layers to the number that they have"));
}

// Published weights, which have no manifest, must contain the modules.
TEST_F(MtpRuns, PublishedWeightsMustHaveMtp) {
  const Path without = run("without", {});
  const Path model = folder_.path() / "model";
  make_folders(model);
  for (const char* file : {"config.json", "model.safetensors"})
    write_file(model / file, read_file(without / file));
  EXPECT_THAT(refusal("none", {load(model), "mtp_num_layers=1"}), HasSubstr("mtp_num_layers"));
}

}  // namespace
}  // namespace primus::test
