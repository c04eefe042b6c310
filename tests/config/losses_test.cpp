// Tests which losses each stage offers.
#include "config/losses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "config/keys.h"
#include "config/stages.h"
#include "support.h"

namespace primus::config {
namespace {

using ::testing::HasSubstr;

// Errors about loss_type list the losses of the present stage.
TEST(Losses, ErrorsListThoseOfTheStage) {
  const auto refused = [](const std::string& stage, const std::string& loss) {
    return error_of(experiment_text(""), {"stage=" + stage, "mock_data=false", "sft_dataset_name=p.jsonl",
                                          "load=model", "reward=exact:a", "loss_type=" + loss});
  };
  EXPECT_THAT(refused("kto", "sigmoid"),
              HasSubstr("loss_type is 'sigmoid'; it must be one of kto, apo_zero_unpaired\n"));
  EXPECT_THAT(refused("sft", "sigmoid"), HasSubstr("it must be one of nll, dft\n"));
  EXPECT_THAT(refused("dpo", "sigmod"),
              testing::AllOf(HasSubstr("did you mean 'sigmoid'?"), testing::Not(HasSubstr("dapo"))));
  std::set<std::string_view> all;
  for (const Stage& stage : stages()) {
    for (const std::string_view loss : losses_of(stage.name)) {
      all.insert(loss);
      EXPECT_EQ(refused(std::string(stage.name), std::string(loss)).find("must be one of"),
                std::string::npos);
    }
    // The default is one of the losses.
    if (!stage.default_loss_type.empty()) {
      EXPECT_EQ(std::ranges::count(losses_of(stage.name), stage.default_loss_type), 1) << stage.name;
    }
  }
  const KeySpec& key = *find_key("loss_type");
  EXPECT_EQ(all, (std::set<std::string_view>(key.choices.begin(), key.choices.end())));
}

}  // namespace
}  // namespace primus::config
