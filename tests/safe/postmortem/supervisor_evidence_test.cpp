// Tests what the supervisor's record tells about a run: its restarts, and the fault that ended it.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/files/file.h"
#include "base/files/scratch_folder.h"
#include "lm/events/run_job.h"
#include "safe/postmortem/diagnosis.h"
#include "safe/postmortem/report.h"
#include "safe/postmortem/run_evidence.h"

namespace primus::postmortem {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

constexpr const char* kBegin = R"({"event":"begin","step":9,"rank":0,"time":200,"facts":{"host":"n1"}}
{"event":"step","step":12,"rank":0,"time":205,"facts":{"iteration":12,"lm_loss":2}}
)";
constexpr const char* kRestart =
    R"({"event":"supervise_detection","step":10,"rank":1,"time":150,"cause":"crashed","facts":{"exit_code":139,"checkpoint":9,"text":"rank 1 was lost"}}
{"event":"supervise_action","step":10,"time":150,"cause":"crashed","facts":{"action":"restart"}}
)";

class Supervised : public testing::Test {
 protected:
  CaseFile read(const std::string& record) {
    make_folders(folder_.path() / "events");
    write_file(folder_.path() / "events" / "rank-00000.jsonl", kBegin);
    write_file(folder_.path() / "events" / "supervisor.jsonl", kRestart + record);
    return read_run(folder_.path());
  }
  ScratchFolder folder_{"supervised"};
};

// The fault of an earlier process is a restart, and no cause of the end.
TEST_F(Supervised, RestartsAreListed) {
  const CaseFile file = read("damaged\n{\"event\":3}\n[]\n");
  ASSERT_THAT(file.restarts, SizeIs(1));
  EXPECT_EQ(file.restarts[0].rank, 1);
  EXPECT_EQ(file.restarts[0].checkpoint, 9);
  const Diagnosis d = diagnose(file);
  EXPECT_EQ(d.cause->name, "died-silently");
  const std::string text = report_text(file, d, Terminal{});
  EXPECT_THAT(text, HasSubstr("restarts   1:"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "crashed (rank 1, step 10), no step after the restart from step 9: rank 1 was lost; signal 11"));
  EXPECT_EQ(report_json(file, d)["restarts"].size(), 1U);
}

TEST_F(Supervised, ARestartFromMemoryNamesItsStep) {
  const CaseFile file = read(
      R"({"event":"supervise_recovered","step":11,"time":201,"facts":{"first_step":11,"state_from":"memory"}})"
      "\n");
  ASSERT_THAT(file.restarts, SizeIs(1));
  EXPECT_EQ(file.restarts[0].checkpoint, 10);
  EXPECT_THAT(report_text(file, diagnose(file), Terminal{}), HasSubstr("continued from step 10 in memory: "));
}

TEST_F(Supervised, ARankRestartIsNamed) {
  const CaseFile file = read(
      R"({"event":"supervise_detection","step":14,"rank":0,"time":210,"cause":"killed","facts":{"exit_code":137,"checkpoint":12,"text":"rank 0 was killed"}}
{"event":"supervise_action","step":14,"time":210,"cause":"killed","facts":{"action":"restart","rung":"rank restart"}}
)");
  ASSERT_THAT(file.restarts, SizeIs(2));
  EXPECT_FALSE(file.restarts[0].of_rank);
  EXPECT_TRUE(file.restarts[1].of_rank);
  const Diagnosis d = diagnose(file);
  EXPECT_THAT(report_text(file, d, Terminal{}),
              HasSubstr("no step after the restart from step 12 by a rank restart: "));
  EXPECT_EQ(report_json(file, d)["restarts"][1]["rung"], "rank restart");
}

TEST_F(Supervised, ARunningRunShowsItsRestarts) {
  CaseFile file = read("");
  file.running = true;
  file.shown.state = "running";
  const std::string text = report_text(file, diagnose(file), Terminal{});
  EXPECT_THAT(text, HasSubstr("state      running"));
  EXPECT_THAT(text, HasSubstr("crashed (rank 1, step 10)"));
}

// Between a fault and the restart, the run has no processes but a supervisor.
TEST_F(Supervised, ARunThatIsRestartedIsNotEnded) {
  const CaseFile file = read(
      R"({"event":"supervise_start","step":10,"time":190,"facts":{"restarts":0}}
{"event":"supervise_detection","step":14,"rank":0,"time":210,"cause":"disk full","facts":{"exit_code":3,"checkpoint":12,"text":"No space left on device"}}
{"event":"supervise_action","step":14,"time":210,"cause":"disk full","facts":{"action":"restart","delay":0,"needs_free_bytes":1048576,"supervisor":)" +
      to_json(this_job()) + "}}\n");
  EXPECT_EQ(file.shown.state, "restarting");
  EXPECT_EQ(file.shown.reason, "disk full");
  const Diagnosis d = diagnose(file);
  EXPECT_EQ(d.cause->name, "disk-full");
  const std::string text = report_text(file, d, Terminal{});
  EXPECT_THAT(text,
              HasSubstr("state      restarting (disk full); starts again when the disk has 1.00 MiB free"));
  EXPECT_THAT(text, HasSubstr("next step  the supervisor continues the run; free space"));
  EXPECT_THAT(text, Not(HasSubstr("supervisor was killed")));
  EXPECT_THAT(text, Not(HasSubstr("same command"))) << "the supervisor needs no command";
  EXPECT_EQ(report_json(file, d)["state"], "restarting");
}

TEST_F(Supervised, ARunThatIsContinuedNeedsNoCommand) {
  CaseFile file = read("");
  file.shown.next = "starts again in 8 s";
  Diagnosis d = diagnose(file);
  for (const Cause& cause : causes()) {
    SCOPED_TRACE(cause.name);
    d.cause = &cause;
    const std::string text = report_json(file, d)["next_step"];
    EXPECT_THAT(text, StartsWith("the supervisor continues the run"));
    for (const char* command : {"same command", "start the run", "tart the job", "submit", "repeat the run"})
      EXPECT_THAT(text, Not(HasSubstr(command)));
    EXPECT_THAT(report_text(file, d, Terminal{}), HasSubstr("next step  " + text + "\n"));
  }
  d.cause = &cause_named("time-limit");
  EXPECT_EQ(report_json(file, d)["next_step"], "the supervisor continues the run.");
  file.shown.next.clear();
  EXPECT_THAT(std::string(report_json(file, d)["next_step"]), HasSubstr("submit the same command again"));
}

TEST_F(Supervised, TheFaultThatEndedTheRunIsItsCause) {
  const struct {
    const char *cause, *code, *text, *name;
  } kCases[] = {
      {"crashed", "139", "rank 1 was lost", "segmentation-fault"},
      {"out-of-memory kill", "137", "the kernel killed a process", "host-out-of-memory"},
      {"hang", "0", "no event for 30 s", "hang"},
      {"lost node", "0", "node 1 (n2) sent no message for 10 s", "node-lost"},
      {"disk full", "3", "cannot write", "disk-full"},
      {"killed", "137", "rank 1 was killed by signal 9 (Killed)", "killed"},
  };
  for (const auto& of : kCases) {
    const CaseFile file =
        read(std::string(R"({"event":"supervise_detection","step":12,"rank":1,"time":206,"cause":")") +
             of.cause + R"(","facts":{"exit_code":)" + of.code + R"(,"node_host":"n2","text":")" + of.text +
             "\"}}\n" + R"({"event":"supervise_action","step":12,"time":206,"cause":")" + of.cause +
             R"(","facts":{"action":"give up","text":"the job failed three times"}})" + "\n");
    const Diagnosis d = diagnose(file);
    EXPECT_EQ(d.cause->name, of.name);
    EXPECT_EQ(d.rank, 1) << of.cause;
    EXPECT_EQ(d.node, "n2") << of.cause;
    EXPECT_THAT(file.restarts, SizeIs(1));
  }
}

}  // namespace
}  // namespace primus::postmortem
