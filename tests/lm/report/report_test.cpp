// Tests lists and reports of runs, from folders that training writes and from damaged folders.
#include "lm/report/report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/log.h"
#include "base/temporary_folder.h"
#include "lm/events/event_log.h"
#include "lm/events/lost_rank.h"
#include "lm/events/metrics_file.h"
#include "lm/events/run_folder.h"
#include "lm/events/supervision.h"
#include "lm/events/training_monitor.h"
#include "lm/report/metrics_line.h"
#include "lm/report/written_texts.h"

namespace primus {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class Reports : public ::testing::Test {
 protected:
  // Makes a run with `done` of `steps` steps and its newest checkpoint at `saved` (0: none).
  Path make_run(const std::string& name, std::int64_t done, std::int64_t steps, std::int64_t saved = 0) {
    const Path folder = folder_.path() / name;
    make_folders(folder / "checkpoints");
    write_file(folder / "experiment.yaml",
               fmt::format("exp_name: {}\nmodules:\n  pre_trainer:\n    framework: native\n    overrides:\n"
                           "      train_iters: {}\n      lr: 0.5\n      save: null\n",
                           name, steps));
    MetricsFile metrics(folder / "metrics.jsonl", 0);
    for (std::int64_t i = 1; i <= done; ++i) metrics.write(record(i, 10.0 / static_cast<double>(i)));
    if (saved > 0) write_file(folder / "checkpoints" / "latest", fmt::format("iter_{:07}\n", saved));
    return folder;
  }
  static IterationRecord record(std::int64_t iteration, double loss) {
    IterationRecord record{.iteration = iteration, .consumed_samples = 8 * iteration, .lm_loss = loss};
    record.grad_norm = 1.0;
    record.throughput.now = {.seconds_per_iteration = 0.5, .tokens_per_second = 1000};
    record.routing = {{.layer = 0, .imbalance = 1.0}, {.layer = 1, .imbalance = 3.0}};
    return record;
  }

  test::TemporaryFolder folder_;
};

TEST_F(Reports, TheStateOfARunIsShown) {
  const RunStatus finished = run_status(make_run("finished", 5, 5, 5));
  EXPECT_EQ(finished.state, RunState::kFinished);
  EXPECT_EQ(finished.step, 5);
  EXPECT_EQ(finished.steps, 5);
  EXPECT_EQ(finished.loss, 2.0);
  EXPECT_EQ(finished.tokens_per_second, 1000);
  EXPECT_LT(finished.age_seconds, 60);
  EXPECT_EQ(run_status(make_run("interrupted", 5, 9, 5)).state, RunState::kInterrupted);
  EXPECT_EQ(run_status(make_run("crashed", 5, 9, 4)).state, RunState::kCrashed);
  EXPECT_EQ(run_status(make_run("never saved", 5, 9)).state, RunState::kCrashed);
  EXPECT_EQ(run_status(make_run("before the first step", 0, 9)).state, RunState::kCrashed);
}

// The recorded end of a process takes precedence over the state of its files.
TEST_F(Reports, TheReasonOfARunsEndIsShown) {
  using State = RunEnding::State;
  const auto ended = [&](const std::string& name, std::int64_t saved, const RunEnding& ending) {
    const Path folder = make_run(name, 5, 5, saved);
    write_ending(folder, ending);
    return run_status(folder);
  };
  EXPECT_EQ(ended("finished", 5, {.state = State::kFinished}).state, RunState::kFinished);
  const RunStatus full =
      ended("full", 4, {.state = State::kFailed, .reason = "disk full", .text = "no room"});
  EXPECT_EQ(full.state, RunState::kCrashed);
  EXPECT_EQ(full.reason, "disk full");
  EXPECT_EQ(full.failure, "no room");
  // One run is killed while it writes its last checkpoint, and another run right after its last checkpoint.
  const RunStatus killed = ended("killed", 4, {.state = State::kRunning});
  EXPECT_EQ(killed.state, RunState::kCrashed);
  EXPECT_EQ(killed.reason, "killed");
  EXPECT_EQ(ended("saved", 5, {.state = State::kRunning}).state, RunState::kFinished);
  const Path early = make_run("early", 0, 9);
  write_ending(early, {.state = State::kStopped, .reason = "SIGINT"});
  EXPECT_EQ(run_status(early).state, RunState::kInterrupted);
  EXPECT_EQ(run_status(early).reason, "SIGINT");
}

TEST_F(Reports, RestartsAndGoodputOfASupervisedRunAreShown) {
  const Path folder = make_run("supervised", 5, 5, 5);
  EXPECT_FALSE(run_status(folder).supervision);
  EXPECT_FALSE(report_json({read_history(folder)}, "now", "1").at("runs").at(0).contains("goodput"));
  make_folders(supervision_file(folder).parent_path());
  const RunTimes times{.wall = 100, .useful = 75, .repeated = 25};
  write_file(supervision_file(folder), fmt::format(R"({{"event":"supervise_end","step":5,"time":1,)"
                                                   R"("facts":{{"restarts":3,"times":{}}}}})"
                                                   "\n",
                                                   to_json(times)));
  ASSERT_TRUE(run_status(folder).supervision);
  EXPECT_EQ(run_status(folder).supervision->restarts, 3);
  const json run = report_json({read_history(folder)}, "now", "1").at("runs").at(0);
  EXPECT_EQ(run.at("restarts"), 3);
  EXPECT_EQ(run.at("goodput"), 0.75);
  EXPECT_EQ(run.at("times").at("repeated_steps"), 25);
}

// A run between a fault and its restart, by the record of a supervisor that runs: this process.
TEST_F(Reports, ARunThatIsRestartedSaysWhenItStarts) {
  const Path folder = make_run("restarted", 5, 9, 4);
  make_folders(supervision_file(folder).parent_path());
  const auto record = [&](const std::string& cause, double delay, const RunJob& supervisor, double ago = 0) {
    const RunTimes times{.wall = 100, .useful = 75, .repeated = 25};
    const double now = unix_seconds() - ago;
    write_file(supervision_file(folder),
               fmt::format(R"({{"event":"supervise_detection","step":5,"time":{0},"cause":"{1}",)"
                           R"("facts":{{"text":"rank 1 was lost","times":{4}}}}})"
                           "\n"
                           R"({{"event":"supervise_action","step":5,"time":{0},"cause":"{1}",)"
                           R"("facts":{{"action":"restart","delay":{2},"supervisor":{3},"times":{4}}}}})"
                           "\n",
                           now, cause, delay, to_json(supervisor), to_json(times)));
  };
  record("lost rank", 30, this_job());
  RunStatus run = run_status(folder);
  EXPECT_EQ(run.state, RunState::kRestarting);
  EXPECT_EQ(name_of(run.state), "restarting");
  EXPECT_EQ(run.reason, "lost rank");
  EXPECT_EQ(run.failure, "rank 1 was lost");
  EXPECT_THAT(run.next, HasSubstr("starts again in "));
  // The time since the record is a part of the restart.
  ASSERT_TRUE(run.supervision);
  EXPECT_GE(run.supervision->times.wall, 100);
  EXPECT_DOUBLE_EQ(run.supervision->times.wall, 100 + run.supervision->times.restart);
  record("lost node", 0, this_job());
  EXPECT_EQ(run_status(folder).state, RunState::kWaiting);
  // The supervisor was killed.
  RunJob ended = this_job();
  ended.process.started += 1;
  record("lost rank", 30, ended);
  EXPECT_EQ(run_status(folder).state, RunState::kCrashed);
  EXPECT_EQ(run_status(folder).next, "");
  EXPECT_EQ(run_status(folder).supervision->times.wall, 100);
  // A supervisor on another machine cannot be seen. It counts as alive until a minute after the restart was
  // due.
  RunJob elsewhere = this_job();
  elsewhere.process.host = "n7";
  elsewhere.process.boot = "another";
  record("lost rank", 30, elsewhere);
  EXPECT_EQ(run_status(folder).state, RunState::kRestarting);
  EXPECT_THAT(run_status(folder).next,
              AllOf(HasSubstr("starts again in "), HasSubstr("supervisor on 'n7' cannot be seen from here")));
  record("lost rank", 0, elsewhere, 30);
  EXPECT_EQ(run_status(folder).state, RunState::kRestarting);
  EXPECT_THAT(run_status(folder).next, HasSubstr("was to start again 3"));
  record("lost rank", 0, elsewhere, 61);
  EXPECT_EQ(run_status(folder).state, RunState::kCrashed);
}

TEST_F(Reports, ADivergedRunIsNotPlainlyFinished) {
  const Path folder = make_run("grown", 5, 5, 5);  // its last loss is 2
  const auto warn = [&](double limit) {
    MetricsFile(folder / "warnings.jsonl", 0)
        .write(RunWarning{.iteration = 3, .detector = "loss_growth", .limit = limit, .text = "grown"});
  };
  warn(1.5);
  EXPECT_EQ(run_status(folder).state, RunState::kDiverged);
  const json run = report_json({read_history(folder)}, "now", "1.0").at("runs").at(0);
  EXPECT_EQ(run.at("warnings").at(0).at("text"), "grown");
  EXPECT_EQ(run.at("state"), "diverged");
  warn(2.5);  // the loss has recovered
  EXPECT_EQ(run_status(folder).state, RunState::kFinished);
  EXPECT_EQ(run_status(folder).warnings.size(), 1U);
  warn(std::numeric_limits<double>::infinity());  // a NaN before the first finite loss
  EXPECT_EQ(run_status(folder).state, RunState::kFinished);
}

TEST_F(Reports, DifferentSettingsAreListed) {
  const Path a = make_run("a", 1, 5), b = make_run("b", 1, 6);
  EXPECT_THAT(differing_settings({run_status(a), run_status(b)}), ElementsAre("train_iters"));
  EXPECT_THAT(differing_settings({run_status(a)}), ElementsAre());
  write_file(b / "experiment.yaml",
             "exp_name: b\n      train_iters: 5\n      lr: 0.5\n      save: null\n"
             "      seed: 2\n");
  EXPECT_THAT(differing_settings({run_status(a), run_status(b)}), ElementsAre("seed", "framework"));
  EXPECT_EQ(run_status(b).settings.at("seed"), "2");
  // The list starts with the settings that users compare most.
  write_file(b / "experiment.yaml", "exp_name: b\n      bf16: true\n      lr: 0.25\n      seed: 2\n");
  const std::vector<std::string> keys = differing_settings({run_status(a), run_status(b)});
  ASSERT_GE(keys.size(), 3U);
  EXPECT_EQ(keys[0], "lr");
  write_file(b / "experiment.yaml",
             "exp_name: b\n      train_iters: 5\n      lr: 0.5\n      save: null\n"
             "      seed: 2\n");
  // usual_settings() returns values that most runs share.
  const std::vector<RunStatus> three = {run_status(a), run_status(a), run_status(b)};
  EXPECT_EQ(usual_settings(three, {"framework", "seed"}),
            (std::map<std::string, std::string>{{"framework", "native"}}));
}

TEST_F(Reports, EpochsAreShownAsSteps) {
  const Path folder = make_run("epochs", 4, 9, 4);
  write_file(folder / "experiment.yaml", "      train_epochs: 2\n");
  EXPECT_EQ(run_status(folder).steps, std::nullopt);
  MetricsFile metrics(folder / "metrics.jsonl", 4);
  IterationRecord last = record(5, 1.0);
  last.train_iters = 5;
  metrics.write(last);
  EXPECT_EQ(run_status(folder).steps, 5);
  EXPECT_EQ(run_status(folder).state, RunState::kFinished);
  EXPECT_FALSE(read_history(folder).metrics.curves().contains("train_iters"));
}

TEST_F(Reports, ARunningRunIsDetectedByItsLock) {
  const Path folder = make_run("running", 5, 9, 5);
  EXPECT_FALSE(RunLock::held(folder));
  EXPECT_FALSE(Env::posix().status(folder / ".lock"));  // the query leaves no file
  {
    const RunLock lock(folder);
    EXPECT_EQ(run_status(folder).state, RunState::kRunning);
    EXPECT_EQ(run_status(folder).state, RunState::kRunning);
  }
  EXPECT_EQ(run_status(folder).state, RunState::kInterrupted);
  const RunLock again(folder);
}

TEST_F(Reports, AReportDoesNotPreventAStart) {
  const Path folder = make_run("run", 1, 9);
  const int lock = open((folder / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_EQ(flock(lock, LOCK_SH), 0);  // takes the lock that a query takes, and holds it longer
  std::thread asks([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    flock(lock, LOCK_UN);
  });
  EXPECT_NO_THROW(RunLock{folder});
  asks.join();
  close(lock);
}

TEST_F(Reports, CheckpointsMayBeInAnotherFolder) {
  const Path folder = make_run("elsewhere", 5, 9);
  make_folders(folder_.path() / "saved here");
  write_file(folder_.path() / "saved here" / "latest", "iter_0000005\n");
  write_file(folder / "experiment.yaml", fmt::format("      train_iters: 9\n      save: \"{}\"\n",
                                                     (folder_.path() / "saved here").string()));
  EXPECT_EQ(run_status(folder).state, RunState::kInterrupted);
}

TEST_F(Reports, DamagedRunsAreReportedAsDamaged) {
  const Path garbage = make_run("garbage", 5, 9);
  write_file(garbage / "metrics.jsonl", "{\"iteration\":1,\"lm_loss\":2}\nno metrics\n");
  EXPECT_EQ(run_status(garbage).state, RunState::kDamaged);
  EXPECT_THAT(run_status(garbage).problem, HasSubstr("metrics.jsonl"));
  const Path pipe = make_run("pipe", 0, 9);
  ASSERT_EQ(mkfifo((pipe / "metrics.jsonl").c_str(), 0600), 0);
  EXPECT_EQ(run_status(pipe).state, RunState::kDamaged);  // must not wait for a writer
  const Path folder = make_run("folder", 0, 9);
  make_folders(folder / "metrics.jsonl");
  EXPECT_EQ(run_status(folder).state, RunState::kDamaged);
  const Path endless = make_run("endless", 0, 9);
  write_file(endless / "metrics.jsonl", std::string(3 << 20, 'x') + "\n");
  EXPECT_EQ(run_status(endless).state, RunState::kDamaged);
  for (const Path& run : {garbage, pipe, folder, endless}) {
    EXPECT_FALSE(read_history(run).notes.empty()) << run;
  }
  // A torn last line means that the run is still writing, or was killed.
  const Path torn = make_run("torn", 5, 9, 5);
  write_file(torn / "metrics.jsonl", "{\"iteration\":4,\"lm_loss\":2}\n{\"iteration\":5,\"lm_lo");
  EXPECT_EQ(run_status(torn).step, 4);
}

TEST_F(Reports, RunsAreFoundAtAnyDepth) {
  make_run("a/b/one", 1, 1);
  make_run("two", 1, 1);
  make_run("two/inner", 1, 1);
  make_folders(folder_.path() / "two" / "checkpoints" / "iter_1");
  write_file(folder_.path() / "two" / "checkpoints" / "iter_1" / "experiment.yaml", "");
  std::filesystem::create_directory_symlink(folder_.path(), folder_.path() / "a" / "loop");
  std::vector<std::string> names;
  for (const Path& run : find_runs(folder_.path()).folders) {
    names.push_back(run.lexically_relative(folder_.path()).string());
  }
  EXPECT_THAT(names, ElementsAre("a/b/one", "two", "two/inner"));
  EXPECT_THROW(find_runs(folder_.path() / "nowhere"), Error);
}

TEST_F(Reports, ThousandsOfRunsAreListedQuickly) {
  const Path model = make_run("run-0", 300, 300, 300);
  constexpr int kRuns = 2000;
  for (int i = 1; i < kRuns; ++i) {
    const Path run = folder_.path() / fmt::format("run-{}", i);
    std::filesystem::create_directory(run);
    for (const char* name : {"metrics.jsonl", "experiment.yaml"}) {
      std::filesystem::create_hard_link(model / name, run / name);
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  const RunSearch found = find_runs(folder_.path());
  ASSERT_EQ(found.folders.size(), kRuns);
  for (const Path& folder : found.folders) ASSERT_EQ(run_status(folder).state, RunState::kFinished);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 10);  // a busy machine is fast enough for this limit, too
}

TEST(MetricsLine, FindsTheLastLineOfFilesOfAnySize) {
  test::TemporaryFolder folder;
  const Path file = folder.path() / "lines";
  const std::string longer(100'000, 'x');
  const std::pair<std::string, std::string> cases[] = {{"", ""},
                                                       {"torn", ""},
                                                       {"a\n", "a"},
                                                       {"a\nb\n", "b"},
                                                       {"a\nb\ntorn", "b"},
                                                       {longer + "\nb\n", "b"},
                                                       {"b\n" + longer + "\n", longer},
                                                       {"b\n" + longer + "\n" + longer, longer}};
  for (const auto& [text, last] : cases) {
    write_file(file, text);
    EXPECT_EQ(last_line(file), last);
  }
}

TEST(Curves, KeepExtremesAndNaNOfRunsOfAnyLength) {
  constexpr std::int64_t kSteps = 1'000'000;
  Curves curves(1000);
  for (std::int64_t i = 1; i <= kSteps; ++i) {
    curves.begin(i, static_cast<double>(8 * i), static_cast<double>(i));
    const bool spike = i == 123'456;
    curves.add("loss", i == 654'321 ? kNaN : spike ? 99.0 : 2.0);
    if (i > kSteps / 2) curves.add("late", 1.0);
  }
  const auto& positions = curves.positions();
  EXPECT_LE(positions.size(), 1000U);
  EXPECT_GE(positions.size(), 500U);
  EXPECT_EQ(positions.front().first, 1);
  EXPECT_EQ(positions.back().last, kSteps);
  EXPECT_EQ(positions.back().samples, 8.0 * kSteps);
  const std::vector<Bucket>& loss = curves.curves().at("loss");
  std::int64_t points = 0, bad = 0, previous = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    EXPECT_EQ(positions[i].first, previous + 1);
    previous = positions[i].last;
    points += loss[i].finite;
    bad += loss[i].other;
    EXPECT_EQ(loss[i].other == 1, positions[i].first <= 654'321 && 654'321 <= positions[i].last);
    EXPECT_EQ(loss[i].largest, positions[i].first <= 123'456 && 123'456 <= positions[i].last ? 99.0 : 2.0);
    EXPECT_EQ(loss[i].minimum, 2.0);
  }
  EXPECT_EQ(points, kSteps - 1);
  EXPECT_EQ(bad, 1);
  EXPECT_EQ(curves.curves().at("late").front().finite, 0);
  EXPECT_EQ(curves.curves().at("late").size(), positions.size());
}

TEST(Curves, ShortRunsAreKeptUnchanged) {
  Curves curves(4);
  for (std::int64_t i = 1; i <= 4; ++i) {
    curves.begin(i, 0, 0);
    curves.add("x", static_cast<double>(i));
  }
  EXPECT_EQ(curves.points_per_bucket(), 1);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(curves.curves().at("x")[i].mean(), static_cast<double>(i + 1));
  curves.begin(5, 0, 0);
  EXPECT_EQ(curves.points_per_bucket(), 2);
  EXPECT_EQ(curves.curves().at("x")[1].mean(), 3.5);
}

TEST_F(Reports, TheHistoryOfARunIsShown) {
  const Path folder = make_run("run", 4, 4, 4);
  MetricsFile evaluations(folder / "evaluations.jsonl", 0);
  for (const auto& [step, loss] : {std::pair(2, 3.0), std::pair(3, 2.5), std::pair(4, 2.75)}) {
    evaluations.write(EvaluationRecord{
        .iteration = step, .data_set = "validation", .lm_loss = loss, .bits_per_byte = loss / 2});
  }
  evaluations.write(EvaluationRecord{.iteration = 4, .data_set = "test", .lm_loss = 1.0});
  const RunHistory run = read_history(folder);
  EXPECT_EQ(run.status.validation_loss, 2.75);
  EXPECT_EQ(run.status.bits_per_byte, 1.375);
  EXPECT_EQ(run.evaluations.curves().at("bits_per_byte").front().mean(), 1.5);
  ASSERT_TRUE(run.best_validation);
  EXPECT_EQ(*run.best_validation, std::pair(std::int64_t{3}, 2.5));
  EXPECT_EQ(run.seconds, 2.0);
  EXPECT_TRUE(run.notes.empty());
  EXPECT_EQ(run.metrics.curves().at("lm_loss")[3].mean(), 2.5);
  EXPECT_EQ(run.metrics.curves().at("imbalance")[0].mean(), 2.0);
  EXPECT_EQ(run.metrics.curves().at("imbalance_worst")[0].mean(), 3.0);
  EXPECT_EQ(run.settings.at("lr"), "0.5");
  EXPECT_EQ(run.settings.at("train_iters"), "4");
  EXPECT_EQ(run.settings.at("exp_name"), "run");
}

TEST_F(Reports, JsonHasCurvesAndDifferences) {
  std::vector<RunHistory> runs;
  runs.push_back(read_history(make_run("team/one", 3, 4)));
  runs.push_back(read_history(make_run("team/two", 3, 5)));
  name_runs(runs);
  EXPECT_EQ(runs[0].name, "one");
  const auto report = report_json(runs, "today", "0");
  EXPECT_THAT(report.at("runs")[0].at("curves").at("lm_loss").at("mean"), ElementsAre(10, 5, 3.33333));
  EXPECT_FALSE(report.at("runs")[0].at("curves").at("lm_loss").contains("least"));
  EXPECT_FALSE(report.at("runs")[0].at("curves").contains("loss_scale"));  // constant, so it has no curve
  ASSERT_EQ(report.at("differences").size(), 1U);
  EXPECT_EQ(report.at("differences")[0].at("key"), "train_iters");
  EXPECT_THAT(report.at("differences")[0].at("values"), ElementsAre("4", "5"));
  EXPECT_EQ(report.at("charts")[0].at("key"), "lm_loss");
}

TEST_F(Reports, NaNStaysVisible) {
  const Path folder = make_run("run", 2, 4);
  {
    MetricsFile metrics(folder / "metrics.jsonl", 2);
    metrics.write(record(3, kNaN));
  }
  std::vector<RunHistory> runs;
  runs.push_back(read_history(folder));
  const auto loss = report_json(runs, "", "").at("runs")[0].at("curves").at("lm_loss");
  EXPECT_TRUE(loss.at("mean")[2].is_null());
  EXPECT_THAT(loss.at("other")[0], ElementsAre(2, 1));
  EXPECT_EQ(report_json(runs, "", "").at("runs")[0].at("loss_text"), "NaN");
}

// Names and settings come from other users' files, and must not become markup in the page.
TEST_F(Reports, ThePageContainsNoMarkupFromFiles) {
  const std::string evil = "</script><img src=x onerror=alert(1)><!--";
  const Path folder = make_run("run", 2, 2);
  write_file(folder / "experiment.yaml", "exp_name: \"" + evil + "\"\nworkspace: \"{{data}}{{program}}\"\n");
  write_file(folder / "metrics.jsonl",
             "{\"iteration\":1,\"lm_loss\":1,\"" + evil + "\":2}\n{\"iteration\":2,\"lm_loss\":1}\n");
  std::vector<RunHistory> runs;
  runs.push_back(read_history(folder));
  runs[0].name = evil + "\xFF";
  const std::string page = report_page(report_json(runs, "today", "0"));
  EXPECT_THAT(page, Not(HasSubstr("</script><img")));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* outside : {"src=\"", "href=\"", "@import", "url(http"})
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  // The data in the page reads back unchanged.
  const std::string begin = "id=\"data\">";
  const std::size_t at = page.find(begin) + begin.size();
  const auto data = nlohmann::json::parse(page.substr(at, page.find("</script>", at) - at));
  EXPECT_EQ(data.at("runs")[0].at("settings").at("exp_name"), evil);
  EXPECT_EQ(data.at("runs")[0].at("settings").at("workspace"), "{{data}}{{program}}");
  EXPECT_TRUE(data.at("runs")[0].at("curves").contains(evil));
}

TEST_F(Reports, ShowsTheNewestTextsOfARun) {
  const Path folder = make_run("run", 2, 2);
  {
    MetricsFile samples(folder / "samples.jsonl", 0);
    for (std::int64_t i = 1; i <= 70; ++i)
      samples.write(SampleRecord{.iteration = i, .prompt = "2+2=", .text = std::to_string(i), .tokens = 2});
    samples.write(SampleRecord{.iteration = 71,
                               .prompt = std::string(kReportTextBytes - 1, 'a') + "\u00e9",
                               .text = "</script><img src=x>",
                               .tokens = 5,
                               .rewards = {{"exact", 0.5}, {"format", std::nullopt}},
                               .finished = false});
  }
  std::string lines = read_file(folder / "samples.jsonl");
  write_file(folder / "samples.jsonl", lines + "rubbish\n{\"text\":\"no iteration\"}\n");
  std::vector<RunHistory> runs;
  runs.push_back(read_history(folder));
  EXPECT_THAT(runs[0].notes, ElementsAre("2 lines of samples.jsonl were damaged and skipped"));
  const nlohmann::ordered_json report = report_json(runs, "", "");
  const auto& texts = report.at("runs")[0].at("texts");
  ASSERT_EQ(texts.size(), kReportTexts);
  EXPECT_EQ(texts.front().at("step"), 71 - static_cast<int>(kReportTexts) + 1);
  EXPECT_FALSE(texts.front().contains("rewards"));
  EXPECT_EQ(texts.back().at("text"), "</script><img src=x>");
  EXPECT_EQ(texts.back().at("finished"), false);
  EXPECT_EQ(texts.back().at("rewards").at("exact"), 0.5);
  EXPECT_TRUE(texts.back().at("rewards").at("format").is_null());
  // A long text is cut before a character that would not fit.
  EXPECT_EQ(texts.back().at("prompt"), std::string(kReportTextBytes - 1, 'a') + " [...]");
  EXPECT_THAT(report_page(report), Not(HasSubstr("<img")));
}

TEST_F(Reports, DamagedLinesAreCountedAndSkipped) {
  const Path folder = make_run("run", 0, 9);
  write_file(folder / "metrics.jsonl",
             "{\"iteration\":1,\"lm_loss\":1}\nrubbish\n{\"iteration\":1,\"lm_loss\":7}\n"
             "{\"iteration\":2,\"lm_loss\":2}\n{\"iteration\":-3}\n{\"lm_loss\":3}\n[]\n" +
                 std::string(2 << 20, 'x') + "\n{\"iteration\":3,\"lm_loss\":3}\n");
  const RunHistory run = read_history(folder);
  EXPECT_EQ(run.metrics.positions().size(), 3U);
  EXPECT_THAT(run.notes, ElementsAre("6 lines of metrics.jsonl were damaged and skipped"));
}

// A run that trains, stops, resumes and ends, as its monitor records it.
class RecordedRuns : public Reports {
 protected:
  RecordedRuns() : run_({folder_.path().string(), "w", "u", "run"}) { run_.create(); }

  void train(std::int64_t first, std::int64_t last, const std::optional<RunEnding>& ending) {
    write_file_atomic(run_.experiment_file(), kExperiment);
    Logger log({});
    TrainingMonitor monitor(run_, {.resume_iteration = first, .tensorboard = false}, log);
    monitor.begin({.train_iters = 9, .experiment = kExperiment});
    for (std::int64_t i = first + 1; i <= last; ++i) {
      monitor.iteration(record(i, i > 100 ? 50 : 10.0 / static_cast<double>(i)));
      if (i % 2 == 0)
        monitor.evaluation({.iteration = i, .lm_loss = 1.0 / static_cast<double>(i), .bits_per_byte = 0.5});
      if (i % 3 == 0) save(monitor, i);
    }
    if (ending) monitor.end(*ending);
  }
  void save(TrainingMonitor& monitor, std::int64_t step) const {
    make_folders(run_.checkpoints());
    write_file_atomic(run_.checkpoints() / "latest", fmt::format("iter_{:07}\n", step));
    monitor.checkpoint(step, CheckpointFacts::State::kSaving);
    monitor.checkpoint(step, CheckpointFacts::State::kDurable);
  }
  std::string shown() const {
    RunHistory history = read_history(run_.root());
    history.status.age_seconds = 0;
    return report_json({history}, "now", "1").dump(1);
  }
  // Reports are equal whether a folder has only the event files or only the other files.
  void expect_same_without_either() {
    const std::string all = shown();
    const Path aside = folder_.path() / "aside";
    std::filesystem::rename(run_.root() / kEventsFolder, aside);
    EXPECT_EQ(shown(), all) << "without event files";
    std::filesystem::rename(aside, run_.root() / kEventsFolder);
    for (const char* name : {"metrics.jsonl", "evaluations.jsonl", "warnings.jsonl", "ending.json",
                             "experiment.yaml", "checkpoints"}) {
      std::filesystem::remove_all(run_.root() / name);
    }
    EXPECT_EQ(shown(), all) << "with only event files";
  }

  static constexpr const char* kExperiment =
      "exp_name: run\nmodules:\n  pre_trainer:\n    framework: native\n    overrides:\n      train_iters: 9\n"
      "      lr: 0.5\n      save: null\n";
  RunFolder run_;
};

// The supervisor has ended the processes, which could record nothing.
TEST_F(RecordedRuns, ASupervisorThatGaveUpGivesTheReason) {
  train(0, 5, std::nullopt);
  const auto give_up = [&](double time) {
    write_file(
        supervision_file(run_.root()),
        fmt::format(R"({{"event":"supervise_action","step":5,"time":{0},"cause":"lost node",)"
                    R"("facts":{{"action":"give up","text":"node 1 is missing after 60 s"}}}})"
                    "\n"
                    R"({{"event":"supervise_end","step":5,"time":{0},"cause":"lost node","facts":{{}}}})"
                    "\n",
                    time));
  };
  give_up(unix_seconds());
  RunStatus run = run_status(run_.root());
  EXPECT_EQ(run.state, RunState::kCrashed);
  EXPECT_EQ(run.reason, "lost node");
  EXPECT_EQ(run.failure, "node 1 is missing after 60 s");
  give_up(unix_seconds() - 3600);  // of an earlier start
  run = run_status(run_.root());
  EXPECT_EQ(run.reason, "killed");
  EXPECT_EQ(run.failure, "");
}

// A start that fails before its first event leaves only a line in the error log.
class FailedStarts : public RecordedRuns {
 protected:
  FailedStarts() {
    train(0, 5, RunEnding{.state = RunEnding::State::kStopped, .reason = "SIGTERM", .iteration = 5});
    make_folders(log_.parent_path());
  }

  ~FailedStarts() override { set_zone(zone_ ? zone_->c_str() : nullptr); }

  static void set_zone(const char* zone) {
    if (zone)
      ::setenv("TZ", zone, 1);
    else
      ::unsetenv("TZ");
    ::tzset();
  }

  // Writes an error some seconds from now, with the local time of a process in the zone.
  void log_error(int seconds, const char* zone) {
    const std::time_t time = std::time(nullptr) + seconds;
    std::tm local{};
    set_zone(zone);
    localtime_r(&time, &local);
    std::array<char, 32> stamp{};
    std::strftime(stamp.data(), stamp.size(), "%Y%m%d %H:%M:%S", &local);
    write_file(log_, fmt::format("[{}][rank-0/1][ERROR]    [rank_run.cpp:1] : data 'd' does not exist\n",
                                 stamp.data()));
    change_at(seconds);
  }

  void change_at(int seconds) {
    std::filesystem::last_write_time(
        log_, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(seconds));
  }

  std::string reason() const { return run_status(run_.root()).reason; }

  const Path log_ = run_.root() / "logs" / "pre_trainer" / "rank-0" / "error.log";

 private:
  const std::optional<std::string> zone_ =
      std::getenv("TZ") ? std::optional<std::string>(std::getenv("TZ")) : std::nullopt;
};

TEST_F(FailedStarts, AreShownInAllZones) {
  for (const char* writer : {"UTC", "XXX+8", "XXX-5:45", "XXX-14"}) {
    for (const char* reader : {"UTC", "XXX+8", "XXX-9"}) {
      SCOPED_TRACE(fmt::format("written in {}, read in {}", writer, reader));
      log_error(-60, writer);  // of the process that was stopped
      set_zone(reader);
      EXPECT_EQ(reason(), "SIGTERM");
      EXPECT_EQ(run_status(run_.root()).failure, "");
      log_error(60, writer);
      set_zone(reader);
      EXPECT_EQ(reason(), "SIGTERM; the next start failed");
      EXPECT_EQ(run_status(run_.root()).failure, "data 'd' does not exist");
    }
  }
}

TEST_F(FailedStarts, AnErrorMayHaveSeveralLines) {
  log_error(60, "UTC");
  std::ofstream(log_, std::ios::app) << "  iter_0000020: the file is damaged\n";
  change_at(60);
  EXPECT_EQ(reason(), "SIGTERM; the next start failed");
  EXPECT_EQ(run_status(run_.root()).failure, "data 'd' does not exist");
}

TEST_F(FailedStarts, ACopiedLogDoesNotTellItsTime) {
  log_error(-60, "XXX+8");
  change_at(60);
  EXPECT_EQ(reason(), "SIGTERM");
}

TEST_F(RecordedRuns, ReportsReadOnlyEvents) {
  using State = RunEnding::State;
  train(0, 5, RunEnding{.state = State::kStopped, .reason = "SIGTERM", .iteration = 5});
  // The steps after the checkpoint of step 3 were lost.
  train(3, 9, RunEnding{.state = State::kFinished, .iteration = 9});
  const RunStatus status = run_status(run_.root());
  EXPECT_EQ(status.state, RunState::kFinished);
  EXPECT_EQ(status.step, 9);
  EXPECT_EQ(status.steps, 9);
  EXPECT_EQ(status.validation_loss, 1.0 / 8);
  EXPECT_EQ(status.settings.at("lr"), "0.5");
  expect_same_without_either();
}

TEST_F(RecordedRuns, AKilledRunIsRecognized) {
  train(0, 5, std::nullopt);
  EXPECT_EQ(run_status(run_.root()).state, RunState::kCrashed);
  EXPECT_EQ(run_status(run_.root()).reason, "killed");
  expect_same_without_either();
}

TEST_F(RecordedRuns, ALostRankIsRecordedByTheLauncher) {
  train(0, 5, std::nullopt);
  record_lost_rank(run_.root(), 1, "rank 1 was lost: SIGKILL\nits last lines");
  record_lost_rank(run_.root(), 1, "and again");
  const RunStatus status = run_status(run_.root());
  EXPECT_EQ(status.state, RunState::kCrashed);
  EXPECT_EQ(status.reason, "a rank was lost");
  EXPECT_EQ(status.failure, "rank 1 was lost: SIGKILL");
  int faults = 0;
  read_rare_events(event_file(run_.root(), 0), [&](const EventLine& event) {
    faults += event.event == "fault" && event.rank == 1 && event.step == 5;
    return true;
  });
  EXPECT_EQ(faults, 1);
  expect_same_without_either();
}

// A rank ended before training began, so no rank has recorded an end.
TEST(EarlyEnds, AreRecordedByTheLauncher) {
  const test::TemporaryFolder folder;
  const Path run = folder.path() / "run";
  const double since = unix_seconds();
  record_early_end(run, 1, kRefused, "no data", since);
  EXPECT_FALSE(std::filesystem::exists(run)) << "a run without a folder leaves none";
  std::filesystem::create_directories(run / "logs");
  record_early_end(run, 1, kRefused, "rank 1 ended with exit code 2: no file 'x'", since);
  record_early_end(run, 0, kLostRank, "and again", since);
  EXPECT_TRUE(is_run_folder(run));
  const RunStatus status = run_status(run);
  EXPECT_EQ(status.state, RunState::kCrashed);
  EXPECT_EQ(status.reason, "refused");
  EXPECT_EQ(status.failure, "rank 1 ended with exit code 2: no file 'x'");
  EXPECT_EQ(status.step, 0);
  // The next start of the run ends before training, too.
  const std::string signal = "rank 0 was killed by signal 9 (Killed)";
  record_early_end(run, 0, kLostRank, signal, unix_seconds());
  EXPECT_EQ(run_status(run).reason, "a rank was lost");
  EXPECT_EQ(run_status(run).failure, signal);
}

TEST_F(RecordedRuns, AnEarlyEndIsNotThatOfARunThatHasTrained) {
  train(0, 5,
        RunEnding{.state = RunEnding::State::kStopped, .reason = "SIGTERM", .text = {}, .iteration = 5});
  record_early_end(run_.root(), 0, kLostRank, "rank 0 was lost", unix_seconds());
  EXPECT_EQ(run_status(run_.root()).reason, "SIGTERM");
}

// Rank 0 sees only that its peer was lost; the launcher knows the signal.
TEST_F(RecordedRuns, TheSignalOfALostRankIsAddedByTheLauncher) {
  const double since = unix_seconds();
  const std::string signal = "rank 1 was killed by signal 9 (Killed)";
  train(0, 5,
        RunEnding{.state = RunEnding::State::kFailed,
                  .reason = std::string(kLostRank),
                  .text = "rank 1 was lost",
                  .iteration = 5});
  record_lost_rank(run_.root(), 1, "rank 1 ended with exit code 3", since);
  record_lost_rank(run_.root(), 1, signal, since + 3600);  // the end of an earlier job
  EXPECT_EQ(run_status(run_.root()).failure, "rank 1 was lost");
  for (int i = 0; i < 2; ++i) record_lost_rank(run_.root(), 1, signal + "\nits last lines", since);
  EXPECT_EQ(run_status(run_.root()).failure, signal);
  int ends = 0;
  read_rare_events(event_file(run_.root(), 0), [&](const EventLine& event) {
    ends += event.event == "end";
    return true;
  });
  EXPECT_EQ(ends, 2) << "the signal is recorded once";
}

// The first steps were trained by a version of Primus that wrote no events.
TEST_F(RecordedRuns, EventsThatBeginLateAreNotTheCompleteRun) {
  train(0, 3, std::nullopt);
  std::filesystem::remove_all(run_.root() / kEventsFolder);
  train(3, 6, RunEnding{.state = RunEnding::State::kStopped, .reason = "SIGTERM", .iteration = 6});
  EXPECT_EQ(run_status(run_.root()).reason, "SIGTERM");
  EXPECT_EQ(read_history(run_.root()).metrics.positions().size(), 6U);
}

TEST_F(RecordedRuns, DamagedEventsAreNoted) {
  train(0, 4, RunEnding{.state = RunEnding::State::kStopped, .iteration = 4});
  const Path file = event_file(run_.root(), 0);
  write_file_atomic(file, read_file(file) + "rubbish\n{\"event\":\"step\",\"step\":9\n");
  EXPECT_THAT(read_history(run_.root()).notes,
              ElementsAre("2 lines of events/rank-00000.jsonl were damaged and skipped"));
  EXPECT_EQ(run_status(run_.root()).step, 4);
}

}  // namespace
}  // namespace primus
