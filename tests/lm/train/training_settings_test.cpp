// Tests how the settings of a session follow from an experiment, and errors for settings that do not fit the
// ranks.
#include "lm/train/settings/training_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "lm/model/family.h"

namespace primus {
namespace {

using ::testing::HasSubstr;

config::Experiment experiment(const std::vector<std::string>& words) {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs.emplace();
  return config::load_experiment_text(
      "{work_group: g, user_name: u, exp_name: e, workspace: w, modules: {pre_trainer: {overrides: "
      "{mock_data: true, num_layers: 1, hidden_size: 16, num_attention_heads: 2, vocab_size: 32, "
      "seq_length: 8}}}}",
      "exp.yaml", words, options);
}

SessionSettings settings_of(const std::vector<std::string>& words, int ranks) {
  const config::Experiment e = experiment(words);
  return session_settings_of(e, model_config_of(e, std::nullopt, builtin_families()), ranks);
}

std::string hint_of(int global_batch, int micro_batch, int ranks) {
  try {
    settings_of({"global_batch_size=" + std::to_string(global_batch),
                 "micro_batch_size=" + std::to_string(micro_batch)},
                ranks);
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("data-parallel ranks"));
    return error.hint();
  }
  return "";
}

// If the ranks could share the batch with smaller microbatches, the hint also suggests smaller microbatches.
TEST(TrainingSettings, AnIndivisibleBatchGetsAHintWithADivisibleBatch) {
  EXPECT_EQ(hint_of(8, 4, 2), "");
  EXPECT_THAT(hint_of(8, 8, 2), HasSubstr("a multiple of 16, or micro_batch_size to 4,"));
  EXPECT_THAT(hint_of(24, 8, 4), HasSubstr("a multiple of 32, or micro_batch_size to 6,"));
  EXPECT_THAT(hint_of(32, 16, 32), HasSubstr("or micro_batch_size to 1,"));
  EXPECT_EQ(hint_of(8, 4, 3), "set it to a multiple of 12");
}

// A batch that is chosen from the data and for the ranks is not yet known.
TEST(TrainingSettings, ABatchThatIsChosenLaterFitsTheRanks) {
  const auto refused = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"mock_data=false", "stage=sft", "sft_dataset_name=chats.jsonl",
                                      "load=model", "sft_fit_to_data=true"};
    words.insert(words.end(), more.begin(), more.end());
    try {
      check_mesh(experiment(words), builtin_families(), 3);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused({}), "");
  EXPECT_THAT(refused({"global_batch_size=64"}), HasSubstr("global_batch_size (64) is not a multiple"));
}

// As in AMD Primus, numbers refer to the blocks of the whole model. The blocks of multi-token prediction come
// last.
TEST(TrainingSettings, BlocksThatAreRecomputedMayBeNamedByNumber) {
  const auto layers_of = [](const std::string& said, const std::string& mtp = "null") {
    return settings_of({"num_layers=5", "mtp_num_layers=" + mtp, "recompute_granularity=full",
                        "recompute_layer_ids=" + said},
                       1)
        .step.recompute.layers;
  };
  using Layers = std::vector<std::int64_t>;
  EXPECT_EQ(layers_of("'4, 0, 3, 0'"), (Layers{0, 3, 4}));
  EXPECT_EQ(layers_of("3, 0, 1,"), (Layers{0, 1, 3}));
  EXPECT_EQ(layers_of("[2]"), Layers{2});
  EXPECT_EQ(layers_of("[1, '4']"), (Layers{1, 4}));
  EXPECT_EQ(layers_of("0,5", "1"), (Layers{0, 5}));
  for (const char* wrong : {"[5]", "[-1]", "0,x", "[0.5]", "1;2", "','"}) {
    EXPECT_THROW(layers_of(wrong), Error) << wrong;
  }
}

// Returns the products of a block's linear layer that use fp8. y: forward; x, W: gradients of input and
// weight.
std::string in_fp8(const engine::PrecisionRecipe& recipe, std::int64_t block) {
  using turbo::GemmRole;
  engine::Parameter matrix;
  matrix.linear_of = block;
  std::string products;
  if (recipe.is_fp8(GemmRole::kForward, matrix)) products += "y";
  if (recipe.is_fp8(GemmRole::kInputGradient, matrix)) products += "x";
  if (recipe.is_fp8(GemmRole::kWeightGradient, matrix)) products += "W";
  return products;
}

TEST(TrainingSettings, KeysOfFp8SetFormatsRolesAndBlocks) {
  const auto recipe_of = [](std::vector<std::string> words) {
    words.insert(words.end(), {"num_layers=5", "global_batch_size=8", "micro_batch_size=2"});
    return settings_of(words, 1).step.precision;
  };
  const auto fp8 = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"fp8=hybrid", "fp8_recipe=tensorwise"});
    return recipe_of(words);
  };
  EXPECT_EQ(in_fp8(recipe_of({}), 2), "");
  EXPECT_EQ(fp8({}).gradients, DType::kF8E5M2);
  EXPECT_EQ(recipe_of({"fp8=e4m3", "fp8_recipe=tensorwise"}).gradients, DType::kF8E4M3);
  EXPECT_EQ(in_fp8(fp8({"fp8_wgrad=false"}), 2), "yx");
  // kElsewhere: outside of blocks; kBehind: a block of multi-token prediction
  constexpr std::int64_t kElsewhere = -1, kBehind = 5;
  for (const std::int64_t block : {0, 1, 2, 3, 4, 5}) {
    EXPECT_EQ(in_fp8(fp8({}), block), "yxW") << block;
    const bool inner = block > 0 && block < 4;
    EXPECT_EQ(in_fp8(fp8({"first_last_layers_bf16=true"}), block), inner || block == kBehind ? "yxW" : "")
        << block;
    const bool second = block == 2 || block == kBehind;
    EXPECT_EQ(in_fp8(fp8({"first_last_layers_bf16=true", "num_layers_at_start_in_bf16=2",
                          "num_layers_at_end_in_bf16=2"}),
                     block),
              second ? "yxW" : "")
        << block;
  }
  EXPECT_EQ(in_fp8(fp8({}), kElsewhere), "");
}

TEST(TrainingSettings, KeysOfDelayedScalesSetTheirRule) {
  const auto rule_of = [](std::vector<std::string> words) {
    words.insert(words.end(), {"fp8=hybrid", "global_batch_size=8", "micro_batch_size=2"});
    return settings_of(words, 1).step.precision.delayed;
  };
  using Rule = engine::DelayedScaling;
  EXPECT_EQ(rule_of({"fp8_recipe=tensorwise", "fp8_amax_history_len=3"}), Rule());
  EXPECT_EQ(rule_of({}), (Rule{.steps = 1024}));  // as in AMD Primus's presets
  EXPECT_EQ(rule_of({"fp8_recipe=delayed", "fp8_amax_history_len=3", "fp8_amax_compute_algo=most_recent",
                     "fp8_margin=2"}),
            (Rule{.steps = 3, .most_recent = true, .margin = 2}));
}

}  // namespace
}  // namespace primus
