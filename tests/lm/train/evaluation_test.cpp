// Tests which samples the evaluations of a run read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/temporary_folder.h"
#include "config/trainer_config.h"
#include "lm/data/batch_loader.h"
#include "lm/events/run_folder.h"
#include "lm/train/settings/training_settings.h"
#include "lm/train/step/session.h"
#include "lm/train/trainer.h"
#include "turbo/devices/devices.h"

namespace primus::test {
namespace {

constexpr std::int64_t kBatch = 4;  // samples per evaluation, as eval_iters is 1

// With a learning rate of zero, the model keeps its initial weights, so a loss identifies its samples.
config::Experiment experiment(const Path& workspace) {
  return config::load_experiment_text(
      "work_group: w\nuser_name: u\nexp_name: e\nworkspace: " + workspace.string() + R"(
modules:
  pre_trainer:
    framework: native
    overrides:
      num_layers: 1
      hidden_size: 32
      ffn_hidden_size: 48
      num_attention_heads: 4
      seq_length: 32
      max_position_embeddings: 64
      tokenizer_type: ByteTokenizer
      mock_data: true
      micro_batch_size: 2
      global_batch_size: 4
      bf16: false
      lr: 0
      min_lr: 0
      train_iters: 5
      eval_interval: 2
      eval_iters: 1
      num_threads: 1
)",
      "experiment.yaml");
}

struct Evaluation {
  std::int64_t iteration;
  std::string data;
  double loss;
};

std::vector<Evaluation> evaluations(const Path& run) {
  std::istringstream lines(read_file(run / "evaluations.jsonl"));
  std::vector<Evaluation> all;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    all.push_back({json.at("iteration"), json.at("data_set"), json.at("lm_loss")});
  }
  return all;
}

// Returns the loss of the untrained model on samples [first, first + kBatch).
double initial_loss(const config::Experiment& e, const data::Dataset& dataset, std::int64_t first) {
  const FamilyRegistry families = builtin_families();
  const auto tokenizer = tokenizer_of(e);
  const SessionSettings settings = session_settings_of(e, model_of(e, families, tokenizer.get()));
  engine::Rank rank(turbo::open_device(device_spec_of(e)));
  const auto session = open_session(rank, settings, families);
  session->store().initialize(rank.context(), static_cast<std::uint64_t>(e.trainer->seed));
  session->step().begin_evaluation();
  data::BatchLoader batches(dataset, {.micro_batch_size = 2, .consumed_samples = first});
  for (std::int64_t i = 0; i < kBatch / 2; ++i) {
    session->step().evaluate(batches.next());
  }
  return session->step().evaluation_loss();
}

// The first evaluation starts at sample 0. Each later evaluation, including the final one after the last
// step, starts where the previous evaluation ended. Test data is read from the start.
TEST(Evaluation, EachUsesTheNextSamples) {
  const TemporaryFolder folder;
  const config::Experiment e = experiment(folder.path());
  const FamilyRegistry families = builtin_families();
  Logger log(LogOptions{});
  Trainer trainer(e, families, log);
  trainer.prepare();
  const std::atomic<bool> stop = false;
  ASSERT_EQ(trainer.run(stop).last_step, 5);

  const auto tokenizer = tokenizer_of(e);
  const data::Datasets datasets = data::open_datasets(data_options_of(e, *tokenizer), *tokenizer);
  ASSERT_TRUE(datasets.valid && datasets.test);
  const std::vector<double> validation{initial_loss(e, *datasets.valid, 0),
                                       initial_loss(e, *datasets.valid, kBatch),
                                       initial_loss(e, *datasets.valid, 2 * kBatch)};
  ASSERT_NE(validation[0], validation[1]);
  ASSERT_NE(validation[1], validation[2]);

  const auto found = evaluations(run_folder_of(e).root());
  ASSERT_EQ(found.size(), 4U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(found[i].iteration, std::min<std::int64_t>(2 * static_cast<std::int64_t>(i) + 2, 5));
    EXPECT_EQ(found[i].data, "validation");
    EXPECT_EQ(found[i].loss, validation[i]) << i;
  }
  EXPECT_EQ(found[3].data, "test");
  EXPECT_EQ(found[3].loss, initial_loss(e, *datasets.test, 0));
}

}  // namespace
}  // namespace primus::test
