// Tests of the events that each rank records during training, and of the commands that read them.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "cli/program_names.h"
#include "cli/runs.h"
#include "lm/events/event_log.h"

namespace primus {
namespace {

using test::Program;
using test::train;
using ::testing::ElementsAre;

class Events : public ::testing::Test {
 protected:
  // Returns a rank's events as texts such as "step 3", without the phases of steps.
  std::vector<std::string> events(int rank = 0) const {
    std::vector<std::string> names;
    EXPECT_EQ(read_events(event_file(run_, rank),
                          [&](const EventLine& line) {
                            if (line.event == "phase") return;
                            names.push_back(line.event + " " + std::to_string(line.step));
                            facts_.push_back(json::parse(line.facts));
                          }),
              0);
    return names;
  }
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> words = train(folder_.path(), {"mock_data=true", "save_interval=2"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  test::TemporaryFolder folder_;
  const Path run_ = test::run_folder(folder_.path());
  mutable std::vector<json> facts_;
};

TEST_F(Events, EachRankRecordsItsOwn) {
  const ProgramResult trained =
      run_program(command({"train_iters=3", "--nproc", "2", "eval_interval=2", "eval_iters=1"}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  for (const int rank : {0, 1}) {
    facts_.clear();
    const std::vector<std::string> all = events(rank);
    // The last evaluation uses validation and test data. A checkpoint has two events: its start, and when it
    // is durable.
    const std::map<std::string, int> expected = {
        {"begin 0", 1},      {"step 1", 1},       {"step 2", 1},       {"step 3", 1}, {"evaluation 2", 1},
        {"evaluation 3", 2}, {"checkpoint 2", 2}, {"checkpoint 3", 2}, {"end 3", 1}};
    for (const auto& [one, times] : expected)
      EXPECT_EQ(std::ranges::count(all, one), times) << one << " of rank " << rank;
    EXPECT_EQ(all.front(), "begin 0");
    EXPECT_EQ(all.back(), "end 3");
    EXPECT_EQ(facts_[0].at("ranks"), 2);
    EXPECT_EQ(facts_[0].contains("experiment"), rank == 0);
    EXPECT_THAT(facts_[0].at("mesh").get<std::string>(), HasSubstr("data 2"));
    const auto step = std::ranges::find(all, "step 2") - all.begin();
    EXPECT_TRUE(facts_[static_cast<std::size_t>(step)].contains("elapsed_time_per_iteration_ms"));
    EXPECT_EQ(facts_[static_cast<std::size_t>(step)].contains("lm_loss"), rank == 0);
    EXPECT_EQ(facts_.back().at("state"), "finished");
  }
}

// `runs` and `report` read only the events: their output stays equal after all other files are removed.
TEST_F(Events, RunsAndReportNeedOnlyEvents) {
  ASSERT_EQ(run_program(command({"train_iters=4", "eval_interval=2", "eval_iters=1"})).exit_code, 0);
  const auto without_age = [&](const std::vector<std::string>& words) {
    json all = json::parse(run_program(words).out);
    if (all.is_array()) all.at(0).erase("age_seconds");
    if (all.is_object()) all.erase("generated");
    return all;
  };
  const std::vector<std::string> runs{"runs", folder_.path().string(), "--json"},
      report{"report", folder_.path().string(), "--json"};
  const json listed = without_age(runs), reported = without_age(report);
  EXPECT_EQ(listed.at(0).at("state"), "finished");
  for (const std::string& name : Env::posix().list(run_)) {
    if (name != kEventsFolder) std::filesystem::remove_all(run_ / name);
  }
  EXPECT_EQ(without_age(runs), listed);
  EXPECT_EQ(without_age(report), reported);
}

TEST_F(Events, AKilledRunResumesAndItsLostStepsDoNotCount) {
  {
    Program program(command({"train_iters=1000000", "save_interval=1000000"}));
    while (program.running() && test::losses(run_).size() < 6)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    program.send(SIGKILL);
    program.wait();
  }
  EXPECT_EQ(json::parse(run_program({"runs", run_.string(), "--json"}).out)[0].at("reason"), "killed");
  ASSERT_EQ(run_program(command({"train_iters=2"})).exit_code, 0);
  ASSERT_EQ(run_program(command({"train_iters=3"})).exit_code, 0);
  EXPECT_THAT(events(), ElementsAre("begin 0", "begin 0", "step 1", "step 2", "checkpoint 2", "checkpoint 2",
                                    "end 2", "begin 2", "step 3", "checkpoint 3", "checkpoint 3", "end 3"));
}

}  // namespace
}  // namespace primus
