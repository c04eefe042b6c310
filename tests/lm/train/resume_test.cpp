// Tests the messages of a resumed run about settings that have changed.
#include "lm/train/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace primus {
namespace {

using testing::ElementsAre;

std::vector<std::string> changes(const std::vector<std::string>& before,
                                 const std::vector<std::string>& after) {
  const auto yaml = [](const std::vector<std::string>& overrides) {
    return config::to_yaml(config::load_experiment(
        PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml", overrides));
  };
  std::vector<std::string> lines;
  for (const SettingChange& change : changed_settings(yaml(before), yaml(after)))
    lines.push_back(change.key + ": " + change.before + " -> " + change.after);
  return lines;
}

TEST(ChangedSettings, AreShownAsCommandLineArguments) {
  EXPECT_THAT(changes({"lr=1e-3"}, {"lr=2e-3"}), ElementsAre("lr: 0.001 -> 0.002"));
  EXPECT_THAT(changes({"data_path=[a,b]", "mock_data=false"}, {"data_path=[a,c]", "mock_data=false"}),
              ElementsAre("data_path: a b -> a c"));
  EXPECT_THAT(changes({"env.A=1"}, {"env.A=2"}), ElementsAre("env.A: 1 -> 2"));
}

// Keys within a map are reported with the name of the map, because 'dropout' alone names another setting.
TEST(ChangedSettings, OfAdaptersHaveThePrefixLora) {
  EXPECT_THAT(changes({"lora={enabled: true, dim: 4}"}, {"lora={enabled: true, dim: 4, dropout: 0.1}"}),
              ElementsAre("lora.dropout:  -> 0.1"));
  EXPECT_THAT(changes({"lora={enabled: true, dim: 4}"}, {"lora={enabled: true, dim: 8}"}),
              ElementsAre("lora.dim: 4 -> 8"));
}

}  // namespace
}  // namespace primus
