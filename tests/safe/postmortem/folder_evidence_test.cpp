// Tests what the files of a run's folder tell besides its events: checkpoints, the recorded ending, errors of
// runs that never began, and requests to stop.
#include "safe/postmortem/folder_evidence.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <array>
#include <ctime>
#include <filesystem>
#include <string>

#include "base/files/file.h"
#include "base/files/scratch_folder.h"
#include "safe/postmortem/diagnosis.h"
#include "safe/postmortem/report.h"
#include "safe/postmortem/run_evidence.h"

namespace primus::postmortem {
namespace {

class FolderOfARun : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    const Path file = folder_.path() / name;
    std::filesystem::create_directories(file.parent_path());
    write_file_atomic(file, text);
  }
  std::string report() const {
    const CaseFile file = read_run(folder_.path());
    return report_text(file, diagnose(file), Terminal{});
  }
  Diagnosis diagnosis() const { return diagnose(read_run(folder_.path())); }

  static constexpr const char* kSteps =
      R"({"event":"begin","step":0,"rank":0,"time":100,"facts":{"host":"n1"}}
{"event":"checkpoint","step":20,"rank":0,"time":103,"facts":{"state":"durable"}}
{"event":"step","step":32,"rank":0,"time":105,"facts":{}}
)";
  ScratchFolder folder_{"folder-evidence"};
};

// A run that an error ends saves after its last event.
TEST_F(FolderOfARun, CheckpointsWithoutEventsAreFound) {
  write("events/rank-00000.jsonl",
        std::string(kSteps) +
            R"({"event":"end","step":32,"rank":0,"time":106,"cause":"error","facts":{"state":"failed"}}
)");
  EXPECT_THAT(report(), testing::HasSubstr("lost work  12 steps, after the checkpoint of step 20"));
  write("checkpoints/.tmp-iter_0000032/manifest.json", "{}");
  write("checkpoints/iter_0000031/model.safetensors", "no manifest");
  write("checkpoints/iter_0000090/manifest.json", "{}");  // of an earlier, longer run
  EXPECT_THAT(report(), testing::HasSubstr("lost work  12 steps"));
  write("checkpoints/iter_0000032/manifest.json", "{}");
  EXPECT_THAT(report(), testing::HasSubstr("lost work  none"));
}

TEST_F(FolderOfARun, WithoutEventsTheRecordedEndingCounts) {
  write("experiment.yaml", "exp_name: x\n");
  write("metrics.jsonl", R"({"iteration":67,"lm_loss":1.5})"
                         "\n");
  write(
      "ending.json",
      R"x({"state":"failed","reason":"a rank was lost","iteration":67,"text":"rank 1 was killed by signal 9 (Killed)"})x");
  write("checkpoints/iter_0000040/manifest.json", "{}");
  const Diagnosis d = diagnosis();
  EXPECT_EQ(d.cause->name, "killed");
  EXPECT_EQ(d.rank, 1);
  EXPECT_THAT(report(), testing::HasSubstr("lost work  27 steps, after the checkpoint of step 40"));
}

// The last line of the events, with the end, is damaged.
TEST_F(FolderOfARun, TheRecordedEndingCompletesDamagedEvents) {
  write("events/rank-00000.jsonl", std::string(kSteps) + "{\"event\":\"en");
  write("ending.json", R"({"state":"running","reason":"","iteration":0})");
  EXPECT_EQ(diagnosis().cause->name, "died-silently");
  write(
      "ending.json",
      R"({"state":"failed","reason":"disk full","iteration":32,"text":"cannot write 'x': No space left on device"})");
  EXPECT_EQ(diagnosis().cause->name, "disk-full");
}

// A run that is refused before its first step has only logs, and the supervisor's record.
TEST_F(FolderOfARun, ErrorsBeforeTheFirstStepAreCauses) {
  write("logs/pre_trainer/rank-1/error.log",
        "[20261129 03:11:41][rank-1/2][ERROR]    [-------pretrain.cpp:435] : rank 0: data '/d/nothere.txt' "
        "does not "
        "exist (set the data path to a text or JSON-lines file)\n");
  write("logs/pre_trainer/rank-0/error.log",
        "[20261129 03:11:41][rank-0/2][ERROR]    [-------pretrain.cpp:435] : data '/d/nothere.txt' does not "
        "exist\n");
  const Diagnosis d = diagnosis();
  EXPECT_EQ(d.cause->name, "missing-file");
  EXPECT_EQ(d.confidence, Confidence::kCertain);
  EXPECT_EQ(d.rank, 0);
}

TEST_F(FolderOfARun, ARefusalThatTheSupervisorRecordedIsACause) {
  write("events/supervisor.jsonl",
        R"x({"event":"supervise_start","step":0,"time":1795921866.07,"facts":{}}
{"event":"supervise_detection","step":0,"time":1795921866.3,"cause":"refused","facts":{"exit_code":2,"checkpoint":0,"text":"the run needs 148 MiB of memory, but 54.5 MiB of 120 MiB are free (the limit of /sys/fs/cgroup/memory/b57u)"}}
{"event":"supervise_end","step":0,"time":1795921866.31,"cause":"refused","facts":{"exit_code":2}}
)x");
  EXPECT_EQ(diagnosis().cause->name, "host-out-of-memory");
  EXPECT_GT(diagnosis().first_sign, 0);
}

// 'primus stop --now' kills a run, which then records nothing.
TEST_F(FolderOfARun, AKillOnRequestIsNoAccident) {
  write(
      "events/rank-00000.jsonl",
      std::string(kSteps) +
          R"({"event":"warning","step":32,"rank":0,"time":105,"cause":"slow_rank","facts":{"text":"rank 0 is slow"}})"
          "\n");
  EXPECT_EQ(diagnosis().cause->name, "slow-rank");
  // The events are of 1970, so the request must be of this time, too.
  write(".stop", R"({"scheduler":"local","host":"n1","pid":7})");
  const auto at = [&](int seconds) {
    const timespec moment{.tv_sec = seconds, .tv_nsec = 0};
    const timespec times[] = {moment, moment};
    ASSERT_EQ(::utimensat(AT_FDCWD, (folder_.path() / ".stop").c_str(), times, 0), 0);
  };
  at(50);  // an earlier process was stopped
  EXPECT_EQ(diagnosis().cause->name, "slow-rank");
  at(106);
  EXPECT_EQ(diagnosis().cause->name, "stopped-now");
  EXPECT_EQ(diagnosis().confidence, Confidence::kLikely);
  write("ending.json",
        R"({"state":"failed","reason":"disk full","iteration":32,"text":"No space left on device"})");
  EXPECT_EQ(diagnosis().cause->name, "disk-full");
}

// Logs have whole seconds: the next start fails in the second in which the run began and ended.
TEST_F(FolderOfARun, TheNextStartFailsInTheSameSecond) {
  const double begin = 1795842030.2;
  const auto second = static_cast<std::time_t>(begin);
  std::tm local{};
  localtime_r(&second, &local);
  std::array<char, 32> stamp{};
  std::strftime(stamp.data(), stamp.size(), "[%Y%m%d %H:%M:%S]", &local);
  for (const char* state : {"finished", "stopped"}) {
    write("events/rank-00000.jsonl",
          fmt::format(R"({{"event":"begin","step":0,"rank":0,"time":{0},"facts":{{"host":"n1"}}}})"
                      "\n"
                      R"({{"event":"end","step":9,"rank":0,"time":{1},"facts":{{"state":"{2}"}}}})"
                      "\n",
                      begin, begin + 0.5, state));
    write("logs/pre_trainer/rank-0/error.log",
          fmt::format("{}[rank-0/1][ERROR]    [rank_run.cpp:1] : no checkpoint in 'c' can be used:\n",
                      stamp.data()));
    EXPECT_EQ(diagnosis().cause->name, "damaged-file") << state;
    EXPECT_EQ(diagnosis().confidence, Confidence::kCertain) << state;
  }
}

TEST_F(FolderOfARun, ASupervisorWithoutAnEndWasKilled) {
  write("events/rank-00000.jsonl", kSteps);
  const std::string start = R"({"event":"supervise_start","step":0,"time":99,"facts":{"host":"h3"}})"
                            "\n";
  write("events/supervisor.jsonl", start);
  EXPECT_EQ(diagnosis().cause->name, "supervisor-lost");
  EXPECT_EQ(diagnosis().node, "h3");
  EXPECT_EQ(diagnosis().first_sign, 105);
  EXPECT_THAT(report(),
              testing::HasSubstr("run the same command again; it continues from the newest checkpoint"));
  write("events/supervisor.jsonl",
        start + R"({"event":"supervise_end","step":32,"time":106,"cause":"failed","facts":{"exit_code":1}})"
                "\n");
  EXPECT_EQ(diagnosis().cause->name, "died-silently");
}

}  // namespace
}  // namespace primus::postmortem
