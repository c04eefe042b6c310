// Tests that the end of another job's process is not taken for the cause of a run's end.
#include "safe/postmortem/kernel_process.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/files/file.h"
#include "base/files/scratch_folder.h"
#include "safe/postmortem/diagnosis.h"
#include "safe/postmortem/run_evidence.h"
#include "safe/postmortem/text_evidence.h"

namespace primus::postmortem {
namespace {

// 2026-11-29 03:11:43 UTC, the begin of a run.
constexpr double kBegan = 1795921903;
constexpr const char* kChosen =
    "2026-11-29T03:11:50,749821+00:00 vm kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),"
    "cpuset=/,mems_allowed=0,oom_memcg=/b57u,task_memcg=/b57u,task=primus,pid=2883,uid=0\n";
constexpr const char* kKilled =
    "2026-11-29T03:11:50,749864+00:00 vm kernel: Memory cgroup out of memory: Killed process 2883 (primus) "
    "total-vm:584804kB, anon-rss:65464kB\n";
// Before the run began.
constexpr const char* kEarlier =
    "2026-11-29T03:11:39,986426+00:00 vm kernel: Memory cgroup out of memory: Killed process 2884 (primus) "
    "total-vm:511068kB, anon-rss:116836kB\n";

CaseFile run_of_two_ranks(const std::string& state) {
  CaseFile file{.run = "run", .state = state, .step = 32};
  for (int rank = 0; rank < 2; ++rank)
    file.ranks.push_back({.rank = rank, .node = "vm", .began = kBegan, .last_time = kBegan + 8});
  return file;
}

void add_event(int rank, const std::string& text, CaseFile& file) {
  file.evidence.push_back({.source = Source::kEvent,
                           .file = "events",
                           .time = kBegan + 8,
                           .rank = rank,
                           .text = text,
                           .cause = match(Source::kEvent, text)});
}

TEST(KernelProcess, IsReadFromAllForms) {
  const struct {
    const char *line, *name;
    std::int64_t pid;
  } kCases[] = {
      {kChosen, "primus", 2883},
      {kKilled, "primus", 2883},
      {"vm kernel: Out of memory: Killed process 7 (node_exporter) total-vm:1kB", "node_exporter", 7},
      {"vm kernel: traps: primus[32609] general protection fault ip:1 sp:2", "primus", 32609},
      {"vm kernel: primus[12]: segfault at d ip 0000560b78eb0058", "primus", 12},
      {"[1.5] traps: cat[9] trap invalid opcode ip:1", "cat", 9},
  };
  for (const auto& of : kCases) {
    const auto process = kernel_process(of.line);
    ASSERT_TRUE(process) << of.line;
    EXPECT_EQ(process->name, of.name) << of.line;
    EXPECT_EQ(process->pid, of.pid) << of.line;
  }
  EXPECT_FALSE(kernel_process("vm kernel: NVRM: Xid (PCI:1): 79, GPU has fallen off the bus."));
  EXPECT_FALSE(kernel_process("oom-kill:constraint=CONSTRAINT_MEMCG,task="));
}

TEST(KernelProcess, OfAnotherProgramIsNoEvidence) {
  CaseFile file;
  read_output(
      "vm kernel: oom-kill:constraint=CONSTRAINT_NONE,task=python3,pid=7,uid=0\n"
      "vm kernel: traps: python3[8] general protection fault ip:1 sp:2\n",
      "dmesg", 0, file);
  EXPECT_TRUE(file.evidence.empty());
}

// A machine may run several jobs of this program.
TEST(KernelProcess, ThatDiedBeforeTheRunBeganIsNoEvidence) {
  CaseFile file = run_of_two_ranks("failed");
  add_event(1, "fault a rank was lost: rank 1 was killed by signal 9 (Killed)", file);
  read_output(kEarlier, "dmesg", 0, file);
  EXPECT_EQ(diagnose(file).cause->name, "killed");
  EXPECT_EQ(diagnose(file).timeline.size(), 1U);
}

TEST(KernelProcess, IsNoEvidenceIfTheRunEndedInOrder) {
  CaseFile file = run_of_two_ranks("stopped");
  add_event(0, "stop SIGTERM", file);
  read_output(std::string(kChosen) + kKilled, "dmesg", 0, file);
  EXPECT_EQ(diagnose(file).cause->name, "stopped");
}

TEST(KernelProcess, WithTheNumberOfARankIsEvidence) {
  CaseFile file = run_of_two_ranks("failed");
  add_event(0, "fault error: 'x.bin' is damaged", file);
  read_output(kKilled, "dmesg", 0, file);
  file.ranks[0].pid = 2990;
  file.ranks[1].pid = 2991;
  EXPECT_EQ(diagnose(file).cause->name, "damaged-file");
  EXPECT_EQ(diagnose(file).confidence, Confidence::kCertain);
  file.ranks[1].pid = 2883;
  EXPECT_EQ(diagnose(file).cause->name, "host-out-of-memory");
  EXPECT_EQ(diagnose(file).confidence, Confidence::kLikely);  // the damaged file is the other explanation
}

TEST(KernelProcess, OfUnknownOwnerIsOnlyPossible) {
  CaseFile file = run_of_two_ranks("");
  read_output(kKilled, "dmesg", 0, file);
  EXPECT_EQ(diagnose(file).cause->name, "host-out-of-memory");
  EXPECT_EQ(diagnose(file).confidence, Confidence::kPossible);
  add_event(0, "fault error: 'x.bin' is damaged", file);
  EXPECT_EQ(diagnose(file).cause->name, "damaged-file");
}

TEST(KernelProcess, ExplainsARankThatWasKilled) {
  CaseFile file = run_of_two_ranks("failed");
  file.ranks[0].pid = 2990;
  add_event(1, "fault a rank was lost: rank 1 was killed by signal 9 (Killed)", file);
  read_output(kKilled, "dmesg", 0, file);
  EXPECT_EQ(diagnose(file).cause->name, "host-out-of-memory");
  EXPECT_EQ(diagnose(file).confidence, Confidence::kCertain);
  EXPECT_EQ(diagnose(file).rank, 1);
}

// A flight recorder has the number of the process that wrote it.
TEST(KernelProcess, OfARankIsKnownFromItsFlightRecorder) {
  const ScratchFolder folder("postmortem");
  std::filesystem::create_directories(folder.path() / "events");
  std::filesystem::create_directories(folder.path() / "logs");
  write_file_atomic(folder.path() / "events" / "rank-00000.jsonl",
                    R"({"event":"begin","step":0,"rank":0,"time":1795921903,"facts":{"host":"vm"}}
{"event":"fault","step":3,"rank":0,"time":1795921911,"cause":"error","facts":{"text":"'/data/x.bin' changed from 543710 to 2000 bytes while it was in use"}}
{"event":"end","step":3,"rank":0,"time":1795921911,"cause":"error","facts":{"state":"failed"}}
)");
  write_file_atomic(folder.path() / "logs" / "flight-rank-0.json",
                    R"({"rank":0,"pid":2991,"reason":"an error","written":1795921911,"records":[]})");
  CaseFile file = read_run(folder.path());
  read_output(std::string(kEarlier) + kKilled, "dmesg", 0, file);
  ASSERT_EQ(file.ranks.size(), 1U);
  EXPECT_EQ(file.ranks[0].pid, 2991);
  const Diagnosis d = diagnose(file);
  EXPECT_EQ(d.cause->name, "damaged-file");
  EXPECT_EQ(d.confidence, Confidence::kCertain);
}

}  // namespace
}  // namespace primus::postmortem
