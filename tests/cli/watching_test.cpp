// Tests of warnings and run states: for runs that diverge, end early, or resume with other settings.
#include <sstream>

#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

using test::Program;
using test::run_folder;

class Watching : public ::testing::Test {
 protected:
  std::vector<std::string> command(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> words = test::train(folder_.path(), {"exp_name=" + name});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  ProgramResult trained(const std::string& name, const std::vector<std::string>& more) const {
    const ProgramResult result = run_program(command(name, more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  // Returns the entry of `runs` for this run.
  json status(const std::string& name) const {
    for (const json& run : json::parse(run_program({"runs", folder_.path().string(), "--json"}).out)) {
      if (run.at("folder").get<std::string>().ends_with("/" + name)) return run;
    }
    return {};
  }
  std::vector<json> lines(const std::string& name, const char* file) const {
    const Path path = run_folder(folder_.path(), name) / file;
    if (!Env::posix().status(path)) return {};
    std::istringstream text(read_file(path));
    std::vector<json> all;
    for (std::string line; std::getline(text, line);) all.push_back(json::parse(line));
    return all;
  }
  bool wait_for_steps(const Program& program, const std::string& name, std::size_t count) const {
    for (int i = 0; program.running() && i < 6000; ++i) {
      if (test::losses(run_folder(folder_.path(), name)).size() >= count) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  test::TemporaryFolder folder_;
};

TEST_F(Watching, ADivergedRunIsReported) {
  // This learning rate is about 40 times the highest rate with which this model trains.
  const ProgramResult result = trained("wild", {"train_iters=60", "lr=1", "clip_grad=0"});
  EXPECT_THAT(result.err, AllOf(HasSubstr("the loss has grown from "), HasSubstr("lower lr")));
  const json run = status("wild");
  EXPECT_EQ(run.at("state"), "diverged");
  // On a busy machine, a slow step may be the first warning.
  EXPECT_THAT(run.at("warnings").dump(), HasSubstr("the loss has grown from "));
  const std::string table = run_program({"runs", folder_.path().string()}).out;
  EXPECT_THAT(table, AllOf(HasSubstr("diverged"), HasSubstr(" warning")));
  trained("tame", {"train_iters=60"});
  EXPECT_EQ(status("tame").at("state"), "finished");
  EXPECT_EQ(status("tame").at("warnings"), json::array());
}

TEST_F(Watching, WhyRunsEnded) {
  // The last save fails, so the run counts as crashed although all steps are done.
  std::vector<std::string> words = command("unsaved", {"train_iters=4", "async_save=false"});
  const ProgramResult failed = run_program(words, {.file_size_limit = 1 << 16});
  EXPECT_EQ(failed.exit_code, 2) << failed.err;
  json run = status("unsaved");
  EXPECT_EQ(run.at("step"), 4);
  EXPECT_EQ(run.at("state"), "crashed");
  EXPECT_THAT(run.at("failure").get<std::string>(), HasSubstr("File too large"));

  trained("interval", {"train_iters=6", "exit_interval=2"});
  run = status("interval");
  EXPECT_EQ(run.at("state"), "interrupted");
  EXPECT_EQ(run.at("reason"), "exit_interval");
  // A process that is asked for fewer steps than are trained has nothing to do. It does not finish the run.
  EXPECT_THAT(trained("interval", {"train_iters=1"}).out, HasSubstr("nothing left to do"));
  run = status("interval");
  EXPECT_EQ(run.at("state"), "interrupted");
  EXPECT_EQ(run.at("reason"), "exit_interval");

  trained("minutes",
          {"train_iters=1000000", "save_interval=1000000", "exit_duration_in_mins=0.02", "--nproc", "2"});
  EXPECT_EQ(status("minutes").at("reason"), "exit_duration_in_mins");

  {
    Program program(command("killed", {"train_iters=1000000", "save_interval=1000000"}));
    ASSERT_TRUE(wait_for_steps(program, "killed", 3));
    program.send(SIGKILL);
    program.wait();
  }
  EXPECT_EQ(status("killed").at("state"), "crashed");
  EXPECT_EQ(status("killed").at("reason"), "killed");

  const ProgramResult nan =
      run_program(command("nan", {"train_iters=5", "lr=1000", "min_lr=1000", "lr_warmup_iters=0",
                                  "clip_grad=0", "weight_decay=1e38"}));
  EXPECT_EQ(nan.exit_code, 3);
  EXPECT_THAT(nan.err, HasSubstr("set clip_grad=1.0 (it is 0"));
  EXPECT_EQ(status("nan").at("reason"), "NaN");
}

// The run is stopped in its first step, which takes long.
TEST_F(Watching, ARunThatIsStoppedBeforeItsFirstStepDidNotCrash) {
  Program program(command("early", {"train_iters=2000", "global_batch_size=8000"}));
  const Path ending = run_folder(folder_.path(), "early") / "ending.json";
  for (int i = 0; program.running() && !Env::posix().status(ending) && i < 6000; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  program.send(SIGINT);
  EXPECT_EQ(program.wait().exit_code, 0);
  const json run = status("early");
  EXPECT_EQ(run.at("step"), 0);
  EXPECT_EQ(run.at("state"), "interrupted");
  EXPECT_EQ(run.at("reason"), "SIGINT");
}

TEST_F(Watching, DifferentSettingsAreListedBelowTheRuns) {
  trained("one", {"train_iters=3"});
  trained("two", {"train_iters=3", "lr=0.001", "seed=7"});
  const std::string table = run_program({"runs", folder_.path().string(), "--sort", "name"}).out;
  EXPECT_THAT(table, AllOf(HasSubstr("    lr=0.003 seed=1234\n"), HasSubstr("    lr=0.001 seed=7\n")));
  EXPECT_EQ(status("two").at("settings"), (json{{"lr", "0.001"}, {"seed", "7"}}));
}

// Training ends after 6 seconds on a machine of any speed, whether the run is resumed or not.
TEST_F(Watching, MinutesEndByTheClock) {
  const std::vector<std::string> minutes = {"train_iters=null", "train_minutes=0.1", "micro_batch_size=4",
                                            "global_batch_size=16", "--json"};
  const json whole = json::parse(trained("whole", minutes).out);
  const std::vector<json> steps = lines("whole", "metrics.jsonl");
  double longest = 0;
  for (const json& step : steps)
    longest = std::max(longest, step.at("elapsed_time_per_iteration_ms").get<double>());
  EXPECT_NEAR(whole.at("seconds").get<double>(), 6, 0.6 + 2e-3 * longest);
  // The learning rate decays with time. In the middle, the rate is between the first and the last rate. The
  // last step reaches the final rate.
  const double middle = steps[steps.size() / 2].at("learning_rate");
  EXPECT_GT(middle, 6e-4);
  EXPECT_LT(middle, 2.7e-3);
  // In the last record, train_iters is the number of steps.
  EXPECT_NEAR(steps.back().at("learning_rate").get<double>(), 3e-4, 3e-4);
  EXPECT_EQ(steps.back().at("train_iters"), steps.size());
  EXPECT_EQ(status("whole").at("state"), "finished");
  EXPECT_THAT(run_program(command("whole", {"train_iters=null", "train_minutes=0.1", "micro_batch_size=4",
                                            "global_batch_size=16"}))
                  .out,
              HasSubstr("nothing left to do"));

  // A shorter time is over before the first step.
  const ProgramResult shorter = run_program(command(
      "whole", {"train_iters=null", "train_minutes=0.05", "micro_batch_size=4", "global_batch_size=16"}));
  EXPECT_THAT(shorter.out, AllOf(HasSubstr("nothing left to do"), HasSubstr("train_minutes is 0.05, and 0."),
                                 HasSubstr("train_minutes=..., above 0.")));
  EXPECT_EQ(lines("whole", "metrics.jsonl").size(), steps.size());

  auto parts = minutes;
  parts.push_back("exit_duration_in_mins=0.05");
  const double first = json::parse(trained("parts", parts).out).at("seconds");
  EXPECT_EQ(status("parts").at("reason"), "exit_duration_in_mins");
  const double second = json::parse(trained("parts", minutes).out).at("seconds");
  EXPECT_NEAR(first + second, 6, 0.8 + 3e-3 * longest);
  EXPECT_EQ(status("parts").at("state"), "finished");
}

TEST_F(Watching, AJumpOfTheRateIsReported) {
  trained("longer", {"train_iters=10"});
  const ProgramResult more = trained("longer", {"train_iters=20"});
  EXPECT_THAT(more.err, AllOf(HasSubstr("the learning rate jumps from 4."), HasSubstr("(iteration 10) to 1."),
                              HasSubstr("WSD")));
  // WSD keeps the learning rate constant until the decay. The rate does not jump, so no warning appears.
  const std::vector<std::string> wsd = {"lr_decay_style=WSD", "lr_wsd_decay_iters=2"};
  auto stable = wsd, stretched = wsd;
  stable.insert(stable.end(), {"train_iters=20", "exit_interval=10"});
  stretched.emplace_back("train_iters=30");
  trained("stable", stable);
  EXPECT_THAT(trained("stable", stretched).err, Not(HasSubstr("jumps")));
}

TEST_F(Watching, AFinishedRunReportsIneffectiveChanges) {
  trained("done", {"train_iters=3"});
  // A script must not take the old model for one that was trained with the new rate.
  const ProgramResult again = run_program(command("done", {"train_iters=3", "lr=0.001", "log_interval=2"}));
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("the changes of its settings or data had no effect"));
  EXPECT_THAT(again.out, AllOf(HasSubstr("nothing left to do"), HasSubstr("lr was 0.003, and is 0.001"),
                               HasSubstr("exp_name"), Not(HasSubstr("log_interval"))));
  EXPECT_THAT(trained("done", {"train_iters=3"}).out, Not(HasSubstr("exp_name")));
}

// If the base model was trained further, a repeated fine-tuning command notes that it used the older weights.
TEST_F(Watching, ANewerBaseIsReported) {
  trained("base", {"train_iters=2"});
  const std::vector<std::string> settings = {"load=" + run_folder(folder_.path(), "base").string(),
                                             "finetune=true", "train_iters=1"};
  EXPECT_EQ(trained("tuned", settings).exit_code, 0);
  EXPECT_THAT(trained("tuned", settings).out, Not(HasSubstr("load changed")));
  trained("base", {"train_iters=4"});
  EXPECT_THAT(trained("tuned", settings).out,
              AllOf(HasSubstr("load changed from iter_0000002 to iter_0000004"), HasSubstr("exp_name")));
  // If `load` names a folder other than the one from which the run started, no note says that it is newer.
  const std::string own = "load=" + run_folder(folder_.path(), "tuned").string();
  EXPECT_THAT(trained("tuned", {own, "finetune=true", "train_iters=1"}).out, Not(HasSubstr("load changed")));
}

// If a kill cut off or prevented a text sample, the resumed run writes this sample.
TEST_F(Watching, NoSampleIsLostOrCut) {
  const std::vector<std::string> settings = {"train_iters=4", "save_interval=2", "sample_interval=2",
                                             "sample_tokens=6"};
  trained("whole", settings);
  const auto whole = lines("whole", "samples.jsonl");
  ASSERT_EQ(whole.size(), 2U);
  // Makes the state of a run that was killed between a checkpoint and its sample.
  auto half = settings;
  half.emplace_back("exit_interval=2");
  trained("cut", half);
  const Path samples = run_folder(folder_.path(), "cut") / "samples.jsonl";
  Env::posix().remove_file(samples);
  trained("cut", settings);
  Env::posix().remove_file(samples);
  trained("cut", settings);  // also writes the sample of the last iteration
  const auto made_up = lines("cut", "samples.jsonl");
  ASSERT_EQ(made_up.size(), 1U);
  EXPECT_EQ(made_up[0].at("text"), whole[1].at("text"));
}

TEST_F(Watching, ASampleThatWasStoppedIsWrittenByTheNextStart) {
  const std::vector<std::string> settings = {"train_iters=2", "sample_interval=1", "sample_tokens=400",
                                             "num_layers=24"};
  Program program(command("slow", settings));
  ASSERT_TRUE(program.wait_for_error("iteration        1/", 60));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  program.send(SIGTERM);
  const ProgramResult stopped = program.wait();
  EXPECT_EQ(stopped.exit_code, 0) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("stopped before the sample at iteration 1 was generated"));
  EXPECT_TRUE(lines("slow", "samples.jsonl").empty());
  trained("slow", settings);
  const auto all = lines("slow", "samples.jsonl");
  ASSERT_EQ(all.size(), 2U) << stopped.err;
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(all[i].at("iteration"), i + 1);
  }
}

TEST_F(Watching, AnInvalidDeviceIsAMistakeOfTheExperiment) {
  const ProgramResult result = run_program(command("none", {"train_iters=1", "device=text"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("unknown kind of device 'text'"), HasSubstr("command line")));
}

}  // namespace
}  // namespace primus
