// Tests of 'primus jobs', 'primus logs' and 'primus stop' with runs that train, and with stand-ins for the
// tools of schedulers.
#include <algorithm>

#include "cli/launch_fixture.h"
#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

using test::Program;
using test::Words;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class RunningJobs : public test::LaunchFixture {
 protected:
  bool wait_for_step() const {
    for (int i = 0; i < 2000; ++i) {
      std::ifstream file(run_ / "metrics.jsonl");
      std::string line;
      if (std::getline(file, line) && std::getline(file, line)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  json list() const {
    const auto result = run({"jobs", folder_.path().string(), "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }

  Path run_ = test::run_folder(folder_.path());
};

TEST_F(RunningJobs, AreListedShownAndStopped) {
  // A step that is saved at the end only, so that the checkpoint proves that the run saved.
  Program program(test::train(folder_.path(), {"train_iters=1000000", "save_interval=1000000",
                                               "lr_decay_iters=100", "--nproc", "2", "--supervise"}));
  ASSERT_TRUE(wait_for_step());
  const json jobs = list();
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0].at("state"), "running");
  EXPECT_EQ(jobs[0].at("run"), run_.string());
  EXPECT_EQ(jobs[0].at("steps"), 1000000);
  EXPECT_GT(jobs[0].at("eta_seconds"), 0);
  const auto table = run({"jobs", folder_.path().string()});
  EXPECT_THAT(table.out, AllOf(HasSubstr("running"), HasSubstr("/1000000"), HasSubstr(run_.string())));

  const auto stopped = run({"stop", run_.string(), "--wait"});
  EXPECT_EQ(stopped.exit_code, 0) << stopped.err;
  EXPECT_THAT(stopped.out, AllOf(HasSubstr("was asked to save and end (SIGTERM)"),
                                 HasSubstr("the run has ended: interrupted at step"), HasSubstr("SIGTERM")));
  const auto result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("restart 1")));
  EXPECT_TRUE(std::filesystem::exists(run_ / "checkpoints/latest"));

  const auto again = run({"stop", run_.string()});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("does not run: it is interrupted at step"));
  EXPECT_EQ(list().size(), 0U);
  EXPECT_THAT(run({"jobs", folder_.path().string()}).out, StartsWith("nothing runs or waits"));

  const auto logs = run({"logs", run_.string(), "-n", "0"});
  EXPECT_EQ(logs.exit_code, 0) << logs.err;
  EXPECT_THAT(logs.out, AllOf(HasSubstr("[rank-0/2]"), HasSubstr("[rank-1/2]"), Not(HasSubstr("\x1b"))));
  const auto one = run({"logs", run_.string(), "--rank", "1", "--json", "-n", "1"});
  const json entry = json::parse(one.out);
  EXPECT_EQ(entry.at("rank"), 1);
  EXPECT_EQ(entry.at("time").get<std::string>().size(), std::string("2026-01-01T00:00:00").size());
  const auto found = run({"logs", run_.string(), "--grep", "^\\[.*\\]\\[rank-0/2\\].* : .*iteration +1/"});
  EXPECT_EQ(std::ranges::count(found.out, '\n'), 1) << found.out;
}

TEST_F(RunningJobs, ARunIsStoppedAtOnceAndFollowed) {
  Program program(test::train(folder_.path(), {"train_iters=1000000", "lr_decay_iters=100"}));
  ASSERT_TRUE(wait_for_step());
  Program follower({"logs", run_.string(), "--follow", "-n", "1"});
  const auto killed = run({"stop", run_.string(), "--now", "--wait"});
  EXPECT_EQ(killed.exit_code, 0) << killed.err;
  EXPECT_THAT(killed.out, AllOf(HasSubstr("was killed"), HasSubstr("crashed")));
  EXPECT_EQ(program.wait().signal, SIGKILL);
  // The restart is followed, too.
  ASSERT_EQ(
      test::run_program(test::train(folder_.path(), {"train_iters=20", "lr_decay_iters=100"})).exit_code, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  follower.send(SIGINT);
  const auto followed = follower.wait();
  EXPECT_EQ(followed.exit_code, 0) << followed.err;
  EXPECT_THAT(followed.out, HasSubstr("20/"));
}

TEST_F(RunningJobs, MistakesAreNamed) {
  ASSERT_EQ(test::run_program(test::train(folder_.path(), {"train_iters=2"})).exit_code, 0);
  const std::string run = run_.string();
  expect_refused({"logs", run, "--rank", "3-1"}, "is not a list of ranks");
  expect_refused({"logs", run, "--rank", "0,"}, "is not a list of ranks");
  expect_refused({"logs", run, "--rank", "7"}, "the run has no log of the ranks 7");
  expect_refused({"logs", run, "--grep", "("}, "regular expression");
  expect_refused({"logs", folder_.path().string()}, "is not the folder of a run");
  expect_refused({"stop", folder_.path().string()}, "is not the folder of a run");
  expect_refused({"jobs", run + "/none"}, "does not exist");
}

TEST_F(RunningJobs, OfASchedulerAreListed) {
  tool("squeue", "printf '7\\0377\\037PENDING\\037\\037Priority\\037N/A\\0371:00\\037llama\\n'");
  tool("kubectl",
       "printf 'E1 memcache.go: again\\nE1 memcache.go: again\\nconnection refused\\n' >&2; exit 1");
  const auto result = run({"jobs"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("slurm:7"), HasSubstr("waiting"), HasSubstr("llama"), HasSubstr("Priority")));
  // One line, without the repetitions of the tool.
  EXPECT_THAT(result.err, HasSubstr("note: 'kubectl' failed (exit code 1): connection refused\n"));
  EXPECT_THAT(result.err, ::testing::Not(HasSubstr("memcache")));
}

// The pods of 'primus k8s' name their job, so that the run records it.
TEST_F(RunningJobs, ARunRecordsItsJob) {
  const auto manifest = run(test::operator+({"k8s", "--image", "i", "--name", "llama", "--"}, test::kTrain));
  for (const char* text :
       {"app.kubernetes.io/managed-by: \"primus\"", "PRIMUS_KUBERNETES_JOB", "metadata.namespace"})
    EXPECT_THAT(manifest.out, HasSubstr(text));
  environment_["PRIMUS_KUBERNETES_JOB"] = "llama";
  environment_["PRIMUS_KUBERNETES_NAMESPACE"] = "team";
  environment_["PRIMUS_KUBERNETES_KIND"] = "jobset";
  ASSERT_EQ(run(test::train(folder_.path(), {"train_iters=2"})).exit_code, 0);
  tool("kubectl",
       R"(case "$1" in get) echo '{"metadata":{"name":"llama","namespace":"team"},"spec":{}}';; esac)");
  const auto stopped = run({"stop", run_.string()});
  EXPECT_EQ(stopped.exit_code, 0) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("the jobset 'llama' is deleted"));
  EXPECT_THAT(log("kubectl"), HasSubstr("--namespace=team"));
}

// An option that has no effect is refused by its name.
TEST_F(RunningJobs, OptionsWithoutEffectAreRefused) {
  const std::string folder = folder_.path().string();
  make_folders(run_ / "events");
  write_file(run_ / "events/rank-00000.jsonl", R"({"event":"begin","step":0,"rank":0,"time":1,"facts":{}})"
                                               "\n");
  const struct {
    std::vector<std::string> words;
    const char* message;
  } kCases[] = {
      {{"jobs", folder, "--namespace", "team"}, "--namespace has no effect: kubectl is not installed here"},
      {{"jobs", folder, "--namespace", ""}, "--namespace needs a name, not ''"},
      {{"report", folder, "-o", "-", "--overwrite"}, "--overwrite has no effect with -o -"},
      {{"report", folder, "-o", "report.html", "--json"}, "--json writes no file"},
      {{"postmortem", run_.string(), "--overwrite"},
       "--overwrite has no effect without --bundle or --output"},
      {{"plan", "pipeline", "--overwrite"}, "--overwrite has no effect without --svg"},
      {{"dashboard", folder, "--token", ""}, "--token needs a secret, not ''"},
  };
  environment_["PATH"] = (folder_.path() / "no tools").string();
  for (const auto& one : kCases) {
    const auto result = run(one.words);
    EXPECT_EQ(result.exit_code, 2) << one.message << result.out;
    EXPECT_THAT(result.err, HasSubstr(one.message));
  }
}

}  // namespace
}  // namespace primus
