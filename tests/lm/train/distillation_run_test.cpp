// Tests whole runs of distillation: what the student learns, resumption bit for bit, and refused teachers;
// with given answers and with the student's own (on-policy distillation).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "lm/train/objectives/keys/second_model_mesh.h"
#include "lm/train/whole_runs.h"

namespace primus::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class DistillationRuns : public WholeRuns {
 protected:
  DistillationRuns()
      : WholeRuns({"mock_data=false", "bf16=false", "num_query_groups=2", "sft_conversation_format=squad",
                   "seq_length=64", "dataloader_type=cyclic", "lr=1e-2"}) {
    std::string lines;
    for (int i = 0; i < 8; ++i)
      lines += fmt::format("{{\"prompt\": \"{}\", \"response\": \"{}\"}}\n", i, i % 2 == 0 ? "aab" : "bba");
    write_file(folder_.path() / "chats.jsonl", lines);
  }
  std::string data() const { return "sft_dataset_name=" + (folder_.path() / "chats.jsonl").string(); }
  static std::string teacher(const Path& folder) { return "teacher=" + folder.string(); }
  // Returns a metric of those steps that have it.
  std::vector<double> of_steps(const std::string& name, const char* metric) const {
    std::vector<double> all;
    for (const nlohmann::json& step : metrics(name))
      if (step.contains(metric)) all.push_back(step.at(metric));
    return all;
  }
};

TEST_F(DistillationRuns, TheStudentLearnsTheTeachersProbabilities) {
  const Path large = run("teacher", {"stage=sft", data(), "hidden_size=64", "train_iters=20"});
  const std::vector<std::string> settings = {"stage=distill", data(), teacher(large), "train_iters=40"};
  for (const char* beta : {"0", "0.5", "1"}) {
    SCOPED_TRACE(beta);
    std::vector<std::string> all = settings;
    all.push_back(fmt::format("beta={}", beta));
    const std::string name = fmt::format("student-{}", beta);
    run(name, all);
    EXPECT_LT(losses(name).back(), 0.05 * losses(name).front());
    EXPECT_THAT(log_of(name), HasSubstr("teacher: " + large.string()));
  }
  // A run on another run's folder uses its newest checkpoint as the teacher.
  run("from-run", {"stage=distill", data(), teacher(folder_.path() / "w/u/teacher"), "train_iters=1"});
  EXPECT_EQ(losses("from-run").front(), losses("student-0.5").front());
}

TEST_F(DistillationRuns, GoOnBitForBit) {
  const Path large = run("teacher", {"stage=sft", data(), "hidden_size=64"});
  for (const bool adapters : {false, true}) {
    std::vector<std::string> settings = {"stage=distill", data(), teacher(large), "train_iters=6"};
    const std::string name = adapters ? "lora" : "full";
    SCOPED_TRACE(name);
    if (adapters) settings.emplace_back("lora={enabled: true, dim: 4, alpha: 8}");
    const Path whole = run(name, settings);
    settings.emplace_back("exit_interval=2");
    run(name + "-twice", settings);
    settings.pop_back();
    const Path twice = run(name + "-twice", settings);
    EXPECT_EQ(losses(name + "-twice"), losses(name));
    for (const char* part : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(read_file(twice / part), read_file(whole / part)) << part;
  }
}

// The student's divergence from the teacher falls on the student's own answers. The data are only prompts.
TEST_F(DistillationRuns, TheStudentComesNearerToTheTeacherOnItsOwnAnswers) {
  const Path large = run("teacher", {"stage=sft", data(), "hidden_size=64", "train_iters=20"});
  std::string lines;
  for (int i = 0; i < 8; ++i) lines += fmt::format("{{\"prompt\": \"{}\"}}\n", i);
  write_file(folder_.path() / "prompts.jsonl", lines);
  run("student",
      {"stage=distill", "sft_dataset_name=" + (folder_.path() / "prompts.jsonl").string(), teacher(large),
       "lmbda=1", "beta=1", "max_completion_length=8", "global_batch_size=8", "train_iters=40"});
  const std::vector<double> divergence = of_steps("student", "loss/own_answers");
  ASSERT_EQ(divergence.size(), 40U);
  EXPECT_EQ(divergence, losses("student"));
  EXPECT_LT(divergence.back(), 0.5 * divergence.front());
  EXPECT_THAT(log_of("student"), AllOf(HasSubstr("8 prompts, "), Not(HasSubstr("held out"))));
}

TEST_F(DistillationRuns, MixedAnswersGoOnBitForBit) {
  const Path large = run("teacher", {"stage=sft", data(), "hidden_size=64"});
  std::vector<std::string> settings = {"stage=distill",
                                       data(),
                                       teacher(large),
                                       "train_iters=8",
                                       "distillation_on_policy_share=0.5",
                                       "max_completion_length=8",
                                       "temperature=0.8",
                                       "top_k=40",
                                       "log_completions=true"};
  const Path whole = run("whole", settings);
  const std::size_t own = of_steps("whole", "loss/own_answers").size(),
                    given = of_steps("whole", "loss/given_answers").size();
  EXPECT_GT(own, 0U);
  EXPECT_GT(given, 0U);
  EXPECT_EQ(own + given, 8U);
  EXPECT_EQ(of_steps("whole", "completions/mean_length").size(), own);
  settings.emplace_back("exit_interval=3");
  run("twice", settings);
  run("twice", settings);
  const Path twice = run("twice", settings);
  EXPECT_EQ(losses("twice"), losses("whole"));
  for (const char* part : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(read_file(twice / part), read_file(whole / part)) << part;
  std::istringstream lines(read_file(folder_.path() / "w/u/whole/samples.jsonl"));
  std::size_t samples = 0;
  for (std::string line; std::getline(lines, line); ++samples)
    EXPECT_THAT(nlohmann::json::parse(line).at("prompt"), HasSubstr("Question"));
  EXPECT_EQ(samples, own);
}

TEST_F(DistillationRuns, SettingsOfOwnAnswersThatDoNotFitAreRefused) {
  const Path large = run("teacher", {"stage=sft", data(), "train_iters=1"});
  const auto refused = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"stage=distill", data(), teacher(large), "lmbda=1",
                                    "max_completion_length=8"};
    all.insert(all.end(), more.begin(), more.end());
    return refusal(name, all);
  };
  EXPECT_THAT(refused("long", {"max_completion_length=64"}), HasSubstr("increase seq_length to at least 65"));
  EXPECT_THAT(refused("labels", {"distillation_label_share=0.5"}), HasSubstr("no labels to learn"));
  EXPECT_THAT(refused("evaluation", {"eval_iters=2"}), HasSubstr("has no evaluation"));
  EXPECT_THAT(refused("none", {"max_prompt_length=3"}), HasSubstr("longer than max_prompt_length"));
}

TEST_F(DistillationRuns, TeachersThatDoNotFitAreRefused) {
  const std::vector<std::string> settings = {"stage=distill", data()};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> all = settings;
    all.push_back(more);
    return all;
  };
  EXPECT_THAT(refusal("none", settings), AllOf(HasSubstr("needs a teacher"), HasSubstr("set teacher_model")));
  EXPECT_THAT(refusal("missing", with(teacher(folder_.path() / "nowhere"))), HasSubstr("nowhere"));
  const Path null = run("null", {"mock_data=true", "data_path=null", "tokenizer_type=NullTokenizer",
                                 "vocab_size=511", "train_iters=1"});
  EXPECT_THAT(refusal("tokens", with(teacher(null))),
              AllOf(HasSubstr("has another tokenizer"), HasSubstr("same family")));
  const Path large = run("teacher", {"stage=sft", data(), "train_iters=1"});
  std::vector<std::string> wrong = with(teacher(large));
  wrong.emplace_back("beta=1.5");
  EXPECT_THAT(refusal("beta", wrong), HasSubstr("from 0 to 1"));
}

// A further model is divided over the ranks of the trained model.
TEST_F(DistillationRuns, SecondModelsThatRanksCannotDivideAreRefused) {
  const auto refused = [&](const std::string& setting, std::int64_t heads,
                           std::int64_t layers) -> std::string {
    const std::vector<std::string> settings_of_mesh = {setting};
    const config::Experiment experiment =
        config::load_experiment_text(yaml_of("mesh"), "experiment.yaml", settings_of_mesh);
    SessionSettings settings;
    settings.step.pipeline.chunks = 1;
    ModelConfig model;
    model.heads = model.kv_heads = heads;
    model.layers = layers;
    model.vocab = 256;
    try {
      check_mesh_of_second_model(experiment, 2, settings, "teacher 'large'", model, 1, 64);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refused("tensor_model_parallel_size=2", 4, 2), "accepted");
  EXPECT_THAT(
      refused("tensor_model_parallel_size=2", 3, 2),
      HasSubstr("the teacher 'large' is divided over the same ranks as the trained model: 3 attention"));
  EXPECT_THAT(refused("pipeline_model_parallel_size=2", 4, 1),
              HasSubstr("has 1 layer, fewer than the 2 pipeline parts"));
}

}  // namespace
}  // namespace primus::test
