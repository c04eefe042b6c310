// Tests which micro_batch_size reinforcement learning chooses on GPUs. The plans are for hardware that is not
// present.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "config/trainer_config.h"
#include "lm/model/family.h"
#include "lm/train/forecast/fit_choice.h"
#include "lm/train/settings/training_settings.h"
#include "lm/train/trainer.h"

namespace primus {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Words = std::vector<std::string>;

// Returns an experiment with 64 answers per step in rows of 512 tokens, for a device with this memory; 0: for
// a CPU. `where`: "defaults", "preset" or "file", which sets the size.
config::Experiment experiment(double memory_gib, const Words& command_line = {},
                              const std::string& where = "defaults") {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs.emplace();
  if (where == "preset") options.preset_dirs->push_back(PRIMUS_SOURCE_DIR "/presets");
  config::Experiment e = config::load_experiment_text(
      "{work_group: g, user_name: u, exp_name: e, workspace: w, modules: {post_trainer: {framework: "
      "native, " +
          std::string(where == "preset" ? "config: grpo_trainer.yaml, " : "") +
          "overrides: {stage: grpo, num_layers: 2, hidden_size: 64, ffn_hidden_size: 128, "
          "num_attention_heads: 4, vocab_size: 512, tokenizer_type: ByteTokenizer, seq_length: 512, "
          "global_batch_size: 64, num_generations: 8, max_completion_length: 64, num_threads: 1, async_save: "
          "false, device: cpu, eval_iters: 0, sft_dataset_name: none.jsonl, reward: ['exact:answer']" +
          std::string(where == "file" ? ", micro_batch_size: 1" : "") + "}}}}",
      "exp.yaml", command_line, options);
  if (memory_gib > 0) {
    e.hardware = std::make_shared<config::Hardware>(config::Hardware{.file = "x.yaml",
                                                                     .short_name = "x",
                                                                     .name = "a GPU",
                                                                     .source = "this test",
                                                                     .device = "cuda",
                                                                     .match = {"x"},
                                                                     .memory_gib = memory_gib,
                                                                     .peak_tflops = 1000,
                                                                     .step_share = 0.5,
                                                                     .peak_memory = 3000});
  }
  return e;
}

std::int64_t chosen(const config::Experiment& e, int world = 1) {
  const auto choice = choose_microbatch(e, world);
  return choice ? choice->rows : 0;
}

TrainingForecast forecast(const config::Experiment& e) {
  Logger quiet(LogOptions{.console_level = LogLevel::kError});
  return Trainer(e, builtin_families(), quiet).forecast();
}

TEST(MicrobatchChoice, AQuarterOfTheRowsAndAtMost16384Tokens) {
  EXPECT_EQ(chosen(experiment(80)), 16);
  EXPECT_EQ(chosen(experiment(80, {"global_batch_size=1024"})), 32);
  EXPECT_EQ(chosen(experiment(80, {"global_batch_size=40"})), 10);
  EXPECT_EQ(chosen(experiment(80, {"seq_length=4096", "max_position_embeddings=4096"})), 4);
  EXPECT_EQ(chosen(experiment(80, {"seq_length=20480", "max_position_embeddings=20480"})), 0);
  EXPECT_EQ(chosen(experiment(80), 4), 4);  // 16 rows on each rank
  EXPECT_EQ(chosen(experiment(80, {"global_batch_size=16"})), 4);
  EXPECT_EQ(chosen(experiment(80, {"global_batch_size=8"})), 0);  // the default is as large
  EXPECT_EQ(chosen(experiment(80, {"stage=ppo", "num_mini_batches=4"})), 4);
}

TEST(MicrobatchChoice, SettingsOfTheUserWin) {
  EXPECT_EQ(chosen(experiment(80, {"micro_batch_size=1"})), 0);
  EXPECT_EQ(chosen(experiment(80, {}, "file")), 0);
  EXPECT_EQ(chosen(experiment(80, {}, "preset")), 16);
  EXPECT_EQ(chosen(experiment(0)), 0);  // a CPU
}

TEST(MicrobatchChoice, AForecastSaysWhatWasChosenAndDecreasesWhatDoesNotFit) {
  const TrainingForecast large = forecast(experiment(80));
  EXPECT_EQ(large.experiment.trainer->micro_batch_size, 16);
  EXPECT_THAT(large.microbatch, HasSubstr("micro_batch_size is not set: chose 16 of 64 rows"));
  const TrainingForecast given = forecast(experiment(80, {"micro_batch_size=4"}));
  EXPECT_THAT(given.microbatch, IsEmpty());
  // A device on which 4 rows fit with reserve, but 16 rows do not.
  constexpr double kMebibytes = 2.0 / 1024;  // the device's memory is rounded to mebibytes
  const double reserved = 80 - static_cast<double>(large.memory.supply.device) / (1 << 30) + kMebibytes;
  const double need = static_cast<double>(given.memory.need.device.total()) / (1 << 30);
  ASSERT_GT(static_cast<double>(large.memory.need.device.total()) / (1 << 30), 1.2 * need);
  const TrainingForecast small = forecast(experiment(reserved + 1.15 * need));
  EXPECT_TRUE(small.memory.fits);
  const std::int64_t rows = small.experiment.trainer->micro_batch_size;
  EXPECT_GE(rows, 4);
  EXPECT_LT(rows, 16);
  EXPECT_THAT(small.microbatch, HasSubstr("decreased micro_batch_size from 16 to " + std::to_string(rows)));
  // Whatever fits with the old size is not refused.
  const TrainingForecast least = forecast(experiment(80, {"micro_batch_size=1"}));
  const double tight = static_cast<double>(least.memory.need.device.total()) / (1 << 30);
  EXPECT_TRUE(forecast(experiment(reserved + 1.07 * tight)).memory.fits);
}

// PPO: the value model, its gradients and its optimizer states are on the device, too.
TEST(MicrobatchChoice, APlanOfPpoCountsTheValueModel) {
  const Words ppo = {"stage=ppo", "num_generations=1", "kl_coef=0"};
  const auto with = [&](Words words, std::string_view word) {
    words.emplace_back(word);
    return words;
  };
  const auto persistent = [&](const Words& words, std::string_view layers) {
    return static_cast<double>(forecast(experiment(80, with(words, layers))).memory.need.device.persistent);
  };
  const auto of_two_layers = [&](const Words& words) {
    return persistent(words, "num_layers=4") - persistent(words, "num_layers=2");
  };
  // Without a reference model, two more layers need twice the memory of GRPO, which trains one model.
  const double one = of_two_layers({"beta=0", "micro_batch_size=4"});
  EXPECT_NEAR(of_two_layers(with(ppo, "micro_batch_size=4")), 2 * one, 0.01 * one);
  const TrainingForecast two = forecast(experiment(80, with(ppo, "micro_batch_size=16")));
  EXPECT_GT(two.step().second_parameters, 0);
  // A device on which 4 rows fit with reserve, but 16 rows do not.
  constexpr double kGibibyte = 1 << 30, kMebibytes = 2.0 / 1024;
  const auto total = [](const TrainingForecast& f) {
    return static_cast<double>(f.memory.need.device.total()) / kGibibyte;
  };
  const TrainingForecast four = forecast(experiment(80, with(ppo, "micro_batch_size=4")));
  ASSERT_GT(total(two), 1.2 * total(four));
  const double reserved = 80 - static_cast<double>(two.memory.supply.device) / kGibibyte + kMebibytes;
  const TrainingForecast small = forecast(experiment(reserved + 1.15 * total(four), ppo));
  EXPECT_TRUE(small.memory.fits);
  EXPECT_GE(small.experiment.trainer->micro_batch_size, 4);
  EXPECT_LT(small.experiment.trainer->micro_batch_size, 16);
}

}  // namespace
}  // namespace primus
