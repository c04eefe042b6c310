// Tests of runs that end at a target loss, and of the log that stage mlperf_pretrain writes.
#include <array>
#include <filesystem>
#include <fstream>

#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

using test::ProgramOptions;
using test::run_folder;
using ::testing::ElementsAre;

class RunsWithTargets : public ::testing::Test {
 protected:
  // Trains 8 steps with an evaluation after every second one. Mock data is random tokens, so the loss soon
  // falls to that of uniform guessing.
  ProgramResult train(const std::string& name, const std::vector<std::string>& more = {},
                      const std::map<std::string, std::string>& environment = {}) const {
    std::vector<std::string> words = {"exp_name=" + name,  "mock_data=true",    "train_iters=8",
                                      "eval_interval=2",   "eval_iters=2",      "split=80,10,10",
                                      "save_interval=100", "lr_warmup_iters=0", "lr=0.002"};
    words.insert(words.end(), more.begin(), more.end());
    ProgramOptions options;
    options.environment = environment;
    return run_program(test::train(folder_.path(), words), options);
  }
  Path run(const std::string& name) const { return run_folder(folder_.path(), name); }
  std::string state(const std::string& name) const {
    for (const json& run : json::parse(run_program({"runs", folder_.path().string(), "--json"}).out)) {
      if (Path(run.at("folder").get<std::string>()).filename() == name) return run.at("state");
    }
    return "there is none";
  }

  struct Evaluation {
    std::int64_t iteration;
    std::string data_set;
    double loss;
  };
  std::vector<Evaluation> evaluations(const std::string& name) const {
    std::vector<Evaluation> all;
    std::ifstream file(run(name) / "evaluations.jsonl");
    for (std::string line; std::getline(file, line);) {
      const json parsed = json::parse(line);
      all.push_back({parsed.at("iteration"), parsed.at("data_set"), parsed.at("lm_loss")});
    }
    return all;
  }
  // Returns a loss that is first reached by the second evaluation, with one rank and with two.
  double target() const {
    const ProgramResult result = train("whole");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::vector<Evaluation> all = evaluations("whole");
    EXPECT_EQ(all.size(), 5U);  // after steps 2, 4, 6, 8, and on test data
    EXPECT_LT(all.at(1).loss, all.at(0).loss - 1e-3);
    return (all.at(0).loss + all.at(1).loss) / 2;
  }
  static std::vector<json> events(const Path& file) {
    std::vector<json> all;
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(":::MLLOG ")) all.push_back(json::parse(line.substr(9)));
    }
    return all;
  }
  static std::string key_of(const json& event) { return event.at("key"); }
  static std::vector<std::string> milestones(const Path& file) {
    std::vector<std::string> all;
    for (const json& event : events(file)) {
      const std::string key = event.at("key");
      const json& about = event.at("metadata");
      if (key == "run_stop") {
        all.push_back(key + " " + about.at("status").get<std::string>() + " " +
                      std::to_string(about.at("samples_count").get<int>()));
      } else if (key == "eval_accuracy") {
        all.push_back("eval " + std::to_string(about.at("samples_count").get<int>()));
      } else if (key == "init_start" || key == "run_start") {
        all.push_back(key);
      }
    }
    return all;
  }

  const test::TemporaryFolder folder_;
};

TEST_F(RunsWithTargets, EndAtTheSameStepOnEveryMesh) {
  const std::string setting = "target_eval_loss=" + std::to_string(target());
  for (const auto& [name, ranks, mesh] :
       std::vector<std::array<std::string, 3>>{{"ranks-1", "1", "tensor_model_parallel_size=1"},
                                               {"ranks-2", "2", "use_distributed_optimizer=true"},
                                               {"tensor", "2", "tensor_model_parallel_size=2"},
                                               {"pipeline", "2", "pipeline_model_parallel_size=2"}}) {
    const ProgramResult result = train(name, {setting, "--nproc", ranks, mesh});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, AllOf(HasSubstr("done after iteration 4"), HasSubstr("target_eval_loss"),
                                  HasSubstr("was reached"), HasSubstr("iter_0000004"), HasSubstr("test loss"),
                                  Not(HasSubstr("run the same command again"))));
    EXPECT_THAT(result.err, HasSubstr("the evaluation at iteration 4 has reached target_eval_loss"));
    EXPECT_EQ(test::losses(run(name)).size(), 4U);
    EXPECT_EQ(state(name), "finished");
    EXPECT_FALSE(std::filesystem::exists(run(name) / "mlperf.log")) << "the stage has no log";
  }
  // A repeated command reads in the run's record that the target was reached.
  const ProgramResult again = train("ranks-2", {setting, "--nproc", "2", "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out).at("last_step"), 4);
  EXPECT_EQ(json::parse(again.out).at("reached_target"), true);
  EXPECT_EQ(evaluations("ranks-2").size(), 3U);  // after steps 2 and 4, and on test data
  // Without a target, the run resumes and ends with the weights of a run that never had a target.
  ASSERT_EQ(train("ranks-1", {"target_eval_loss=null"}).exit_code, 0);
  EXPECT_EQ(test::final_weights(run("ranks-1"), 8), test::final_weights(run("whole"), 8));
}

TEST_F(RunsWithTargets, WithoutValidationAreRefused) {
  const ProgramResult none = train("none", {"target_eval_loss=3", "eval_iters=0"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("the run does not evaluate (eval_iters: 0)"));
  const Path text = folder_.path() / "text.txt";
  write_file(text, std::string(20000, 'a'));
  const ProgramResult data =
      train("none", {"target_eval_loss=3", "split=100,0,0", "mock_data=false", "data_path=" + text.string()});
  EXPECT_EQ(data.exit_code, 2);
  EXPECT_THAT(data.err, AllOf(HasSubstr("no validation data is given"), HasSubstr("split")));
  EXPECT_FALSE(std::filesystem::exists(run("none")));
}

TEST_F(RunsWithTargets, MlperfsLogSaysSuccess) {
  const Path file = folder_.path() / "results" / "mlperf.out";
  for (const std::string ranks : {"1", "2"}) {
    const std::string loss = std::to_string(target());
    const ProgramResult result = train("run-" + ranks, {"stage=mlperf_pretrain", "--nproc", ranks},
                                       {{"MLLOG_OUTPUT_FILE", file.string()},
                                        {"MLLOG_TARGET_EVAL_LOSS", loss},
                                        {"MLLOG_SUBMISSION_ORG", "AMD"},
                                        {"MLLOG_TRAIN_LOSS_LOG_FREQ", "2"}});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("set MLLOG_SUBMISSION_BENCHMARK, MLLOG_SUBMISSION_DIVISION, "));
    EXPECT_THAT(milestones(file),
                ElementsAre("init_start", "run_start", "eval 8", "eval 16", "run_stop success 16"));
    const std::vector<json> all = events(file);
    const auto value = [&](const std::string& key) {
      const auto found = std::ranges::find(all, key, key_of);
      return found == all.end() ? json("none") : found->at("value");
    };
    EXPECT_EQ(value("submission_org"), "AMD");
    EXPECT_EQ(value("submission_division"), "none");
    EXPECT_NEAR(value("target_accuracy").get<double>(), std::stod(loss), 1e-12);
    EXPECT_EQ(value("gradient_accumulation_steps"), ranks == "1" ? 2 : 1);
    EXPECT_EQ(value("eval_samples"), 8);
    EXPECT_EQ(value("init_checkpoint_step"), 0);
    EXPECT_EQ(all.back().at("key"), "run_stop") << "saving and the test evaluation come after run_stop";
    EXPECT_EQ(std::ranges::count(all, "tracked_stats", key_of), 4);
    std::vector<double> losses;
    for (const json& event : all) {
      if (event.at("key") == "eval_accuracy") losses.push_back(event.at("value"));
    }
    EXPECT_THAT(losses,
                ElementsAre(evaluations("run-" + ranks).at(0).loss, evaluations("run-" + ranks).at(1).loss));
    EXPECT_THAT(read_file(run("run-" + ranks) / "experiment.yaml"),
                HasSubstr("target_eval_loss: " + loss.substr(0, 4)));
    // The second run writes a new file at this path, and the first run's file is kept.
    EXPECT_EQ(std::filesystem::exists(folder_.path() / "results" / "mlperf.previous.out"), ranks == "2");
  }
}

TEST_F(RunsWithTargets, MlperfsLogSaysAborted) {
  const ProgramResult none = train("run", {"stage=mlperf_pretrain"});
  ASSERT_EQ(none.exit_code, 0) << none.err;
  EXPECT_THAT(none.err, HasSubstr("mlperf_pretrain without a target"));
  const Path file = run("run") / "mlperf.log";
  EXPECT_THAT(milestones(file), ElementsAre("init_start", "run_start", "eval 8", "eval 16", "eval 24",
                                            "eval 32", "run_stop aborted 32"));
  const std::string before = read_file(file);
  ASSERT_EQ(train("run", {"stage=mlperf_pretrain"}).exit_code, 0);
  EXPECT_EQ(read_file(file), before) << "a finished run writes no events";
  // The target is not reached.
  const ProgramResult low = train("low", {"stage=mlperf_pretrain", "target_eval_loss=0.01", "train_iters=2"});
  EXPECT_THAT(low.out, HasSubstr("target_eval_loss 0.01 was not reached"));
  EXPECT_EQ(milestones(run("low") / "mlperf.log").back(), "run_stop aborted 8");
}

TEST_F(RunsWithTargets, MlperfsLogContinuesInAResumedRun) {
  const std::vector<std::string> words = {"stage=mlperf_pretrain",
                                          "target_eval_loss=" + std::to_string(target())};
  std::vector<std::string> first = words;
  first.push_back("exit_interval=3");
  ASSERT_EQ(train("run", first).exit_code, 0);
  const Path file = run("run") / "mlperf.log";
  EXPECT_THAT(milestones(file), ElementsAre("init_start", "run_start", "eval 8", "run_stop aborted 12"));
  EXPECT_EQ(state("run"), "interrupted");
  ASSERT_EQ(train("run", words).exit_code, 0);
  EXPECT_THAT(milestones(file), ElementsAre("init_start", "run_start", "eval 8", "run_stop aborted 12",
                                            "init_start", "run_start", "eval 16", "run_stop success 16"));
  EXPECT_EQ(state("run"), "finished");
}

TEST_F(RunsWithTargets, AnErrorAbortsMlperfsRun) {
  // The learning rate makes the loss non-finite.
  const ProgramResult result =
      train("run", {"stage=mlperf_pretrain", "lr=1000", "clip_grad=0", "train_iters=60"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(milestones(run("run") / "mlperf.log").back(), HasSubstr("run_stop aborted"));
}

TEST_F(RunsWithTargets, AnMlperfLogThatCannotBeWrittenIsFoundBeforeTheFirstStep) {
  const ProgramResult folder =
      train("run", {"stage=mlperf_pretrain"}, {{"MLLOG_OUTPUT_FILE", folder_.path().string()}});
  EXPECT_EQ(folder.exit_code, 2);
  EXPECT_THAT(folder.err, AllOf(HasSubstr("is not a file"), HasSubstr("MLLOG_OUTPUT_FILE")));
  const ProgramResult number =
      train("run", {"stage=mlperf_pretrain"}, {{"MLLOG_TRAIN_LOSS_LOG_FREQ", "often"}});
  EXPECT_EQ(number.exit_code, 2);
  EXPECT_THAT(number.err, HasSubstr("MLLOG_TRAIN_LOSS_LOG_FREQ is 'often'"));
  EXPECT_TRUE(test::losses(run("run")).empty());
}

}  // namespace
}  // namespace primus
