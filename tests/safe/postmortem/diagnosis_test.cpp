// Tests which cause is chosen from the evidence of made-up incidents, and that the document lists all causes.
#include "safe/postmortem/diagnosis.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/files/file.h"
#include "base/files/scratch_folder.h"
#include "safe/postmortem/clocks.h"
#include "safe/postmortem/incident_folder.h"
#include "safe/postmortem/report.h"
#include "safe/postmortem/run_evidence.h"

namespace primus::postmortem {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kEnd = 1795842031;

Evidence evidence(Source source, double time, int rank, const std::string& node, const std::string& text) {
  return {.source = source,
          .file = "f",
          .time = time,
          .rank = rank,
          .node = node,
          .text = text,
          .cause = match(source, text)};
}

// Four ranks on two nodes; rank 2 on n2 stops without a record, and the others end a second later.
CaseFile lost_rank() {
  CaseFile file{.run = "run", .state = "failed", .reason = "a rank was lost", .step = 120, .saved_step = 100};
  for (int rank = 0; rank < 4; ++rank) {
    file.ranks.push_back({.rank = rank,
                          .node = rank < 2 ? "n1" : "n2",
                          .began = kEnd - 1000,
                          .last_time = rank == 2 ? kEnd - 1 : kEnd,
                          .last_step = 120,
                          .ended = rank != 2});
  }
  file.evidence.push_back(
      evidence(Source::kEvent, kEnd, 2, "", "fault a rank was lost: rank 2 was lost: killed by signal 9"));
  return file;
}

TEST(Diagnosis, WithoutOtherEvidenceTheRankWasKilled) {
  const Diagnosis d = diagnose(lost_rank());
  EXPECT_EQ(d.cause->name, "killed");
  EXPECT_EQ(d.confidence, Confidence::kPossible);
  EXPECT_EQ(d.rank, 2);
  EXPECT_EQ(d.node, "n2");
}

TEST(Diagnosis, TheKernelExplainsAKill) {
  CaseFile file = lost_rank();
  file.evidence.push_back(
      evidence(Source::kKernel, kEnd - 1, -1, "n2.cluster", "Out of memory: Killed process 7 (primus)"));
  const Diagnosis d = diagnose(file);
  EXPECT_EQ(d.cause->name, "host-out-of-memory");
  EXPECT_EQ(d.confidence, Confidence::kCertain);
  EXPECT_EQ(d.rank, 2);
  EXPECT_EQ(d.node, "n2.cluster");
}

// The records of rank 2 were copied without their end.
TEST(Diagnosis, ARunThatWasStoppedInOrderHasLostNoRank) {
  CaseFile file = lost_rank();
  file.state = "stopped";
  file.evidence = {
      evidence(Source::kKernel, kEnd - 5, -1, "n2", "mce: CPU3: Core temperature above threshold")};
  const Diagnosis d = diagnose(file);
  EXPECT_EQ(d.cause->name, "gpu-heat");
  EXPECT_EQ(d.rank, -1);
  EXPECT_EQ(d.node, "n2");
}

TEST(Diagnosis, EvidenceOfAnotherTimeOrNodeIsIgnored) {
  CaseFile file = lost_rank();
  file.evidence.push_back(
      evidence(Source::kKernel, kEnd - 5000, -1, "n2", "Out of memory: Killed process 7 (primus)"));
  file.evidence.push_back(
      evidence(Source::kKernel, kEnd - 1, -1, "n9", "NVRM: Xid (PCI:1): 79, GPU has fallen off the bus."));
  EXPECT_EQ(diagnose(file).cause->name, "killed");
  EXPECT_EQ(diagnose(file).timeline.size(), 1U);
}

TEST(Diagnosis, TheNodeOfTheLostRankPrecedesOtherNodes) {
  CaseFile file = lost_rank();
  file.evidence.push_back(
      evidence(Source::kKernel, kEnd - 50, -1, "n1", "mlx5_core 0000:17:00.0 ib0: Link down"));
  file.evidence.push_back(
      evidence(Source::kKernel, kEnd - 1, -1, "n2", "NVRM: Xid (PCI:1): 79, GPU has fallen off the bus."));
  const Diagnosis d = diagnose(file);
  EXPECT_EQ(d.cause->name, "gpu-lost");
  EXPECT_EQ(d.confidence, Confidence::kLikely);
  ASSERT_EQ(d.alternatives.size(), 1U);
  EXPECT_EQ(d.alternatives[0]->name, "network-link");
}

TEST(Diagnosis, AFaultOfTheProgramPrecedesReactions) {
  CaseFile file = lost_rank();
  for (RankRecord& rank : file.ranks) rank.ended = true;
  file.evidence = {evidence(Source::kLog, kEnd - 2, 3, "n2", "error: Connection reset by peer"),
                   evidence(Source::kEvent, kEnd, 1, "n1",
                            "fault NaN: the loss is NaN (first operator: layers.3.attention)")};
  const Diagnosis d = diagnose(file);
  EXPECT_EQ(d.cause->name, "nan");
  EXPECT_EQ(d.rank, 1);
}

TEST(Diagnosis, ARequestExplainsADeath) {
  CaseFile file = lost_rank();
  file.evidence.push_back(evidence(Source::kScheduler, kEnd + 2, -1, "n1",
                                   "*** JOB 26 ON n1 CANCELLED AT x DUE TO TIME LIMIT ***"));
  EXPECT_EQ(diagnose(file).cause->name, "time-limit");
}

TEST(Diagnosis, AFinishedOrRunningRunHasNoCause) {
  CaseFile file = lost_rank();
  file.state = "finished";
  EXPECT_EQ(diagnose(file).confidence, Confidence::kNone);
  file.state = "failed";
  file.running = true;
  EXPECT_EQ(diagnose(file).cause->name, "unknown");
}

TEST(Diagnosis, ASilentDeathIsSaid) {
  CaseFile file = lost_rank();
  file.state.clear();
  file.evidence.clear();
  EXPECT_EQ(diagnose(file).cause->name, "died-silently");
}

// All ranks are asked to stop, so none of them is named.
TEST(Diagnosis, AStopHasNoRank) {
  CaseFile file = lost_rank();
  for (RankRecord& rank : file.ranks) rank.ended = true;
  file.state = "stopped";
  file.evidence = {evidence(Source::kEvent, kEnd, 1, "n1", "stop SIGTERM")};
  const Diagnosis d = diagnose(file);
  EXPECT_EQ(d.cause->name, "stopped");
  EXPECT_EQ(d.rank, -1);
  EXPECT_EQ(d.node, "");
  EXPECT_THAT(report_text(file, d, Terminal{}), Not(HasSubstr("where ")));
}

// A slow rank may be why a user stopped a run, but it does not explain a kill.
TEST(Diagnosis, ATroubleExplainsAStop) {
  CaseFile file = lost_rank();
  for (RankRecord& rank : file.ranks) rank.ended = true;
  file.state = "stopped";
  file.evidence = {evidence(Source::kEvent, kEnd - 20, 3, "", "warning slow_rank: rank 3 is slow"),
                   evidence(Source::kEvent, kEnd, 0, "n1", "stop SIGTERM")};
  EXPECT_EQ(diagnose(file).cause->name, "slow-rank");
  EXPECT_EQ(diagnose(file).rank, 3);
  EXPECT_EQ(diagnose(file).node, "n2");
  file.state = "finished";
  EXPECT_EQ(diagnose(file).cause->name, "slow-rank");
  file.evidence.push_back(evidence(Source::kEvent, kEnd, 2, "", "rank 2 was killed by signal 9 (Killed)"));
  file.state = "failed";
  EXPECT_EQ(diagnose(file).cause->name, "killed");
}

// A rank that ends with an exit code may have reacted to a rank that hangs.
TEST(Diagnosis, TheRankThatHangsPrecedesTheRankThatEnds) {
  CaseFile file = lost_rank();
  for (RankRecord& rank : file.ranks) rank.ended = true;
  file.evidence = {
      evidence(Source::kEvent, kEnd, 3, "", "fault a rank was lost: rank 3 ended with exit code 3"),
      evidence(Source::kEvent, kEnd + 1, 1, "", "rank 3: all_reduce: rank 1 is missing and does not answer"),
      evidence(Source::kKernel, kEnd - 9, -1, "n1", "NVRM: Xid (PCI:1): 79, GPU has fallen off the bus.")};
  EXPECT_EQ(diagnose(file).cause->name, "gpu-lost");
  EXPECT_EQ(diagnose(file).rank, 1);
}

// The scheduler reports the loss of a node that a fault of its machine caused.
TEST(Diagnosis, AFaultExplainsALostNodeAndASignal) {
  CaseFile file = lost_rank();
  file.evidence.push_back(evidence(Source::kScheduler, kEnd - 5, -1, "n2", "error: Node failure on n2"));
  file.evidence.push_back(
      evidence(Source::kKernel, kEnd, -1, "n2", "Kernel panic - not syncing: Fatal machine check"));
  EXPECT_EQ(diagnose(file).cause->name, "machine-check");
  file.evidence = {evidence(Source::kEvent, kEnd, 2, "", "rank 2 was killed by signal 6 (Aborted)"),
                   evidence(Source::kLog, 0, -1, "", "error: an illegal memory access was encountered"),
                   evidence(Source::kKernel, kEnd, -1, "n2", "NVRM: Xid (PCI:1): 31, MMU Fault")};
  EXPECT_EQ(diagnose(file).cause->name, "gpu-access-fault");
}

// A cause that a program and a kernel report precedes a cause that only a kernel reports.
TEST(Diagnosis, TwoWitnessesPrecedeOne) {
  CaseFile file = lost_rank();
  file.evidence = {evidence(Source::kKernel, kEnd - 2, -1, "n2", "I/O error, dev nvme1n1, sector 3"),
                   evidence(Source::kKernel, kEnd - 1, -1, "n2", "EXT4-fs: Remounting filesystem read-only"),
                   evidence(Source::kEvent, kEnd, 2, "", "fault error: cannot write: Read-only file system")};
  EXPECT_EQ(diagnose(file).cause->name, "read-only-file-system");
}

TEST(Diagnosis, ACrashLoopIsNamedWithItsFault) {
  CaseFile file = lost_rank();
  file.evidence.push_back(evidence(Source::kEvent, kEnd, 2, "", "supervise crashed: killed by signal 11"));
  file.evidence.push_back(
      evidence(Source::kEvent, kEnd, -1, "", "supervise gave up (crash loop): 3 times signal 11"));
  const Diagnosis d = diagnose(file);
  EXPECT_EQ(d.cause->name, "crash-loop");
  EXPECT_EQ(d.rank, 2);
  ASSERT_FALSE(d.alternatives.empty());
  EXPECT_EQ(d.alternatives[0]->name, "segmentation-fault");
}

// Launchers fill the nodes of a job in blocks.
TEST(Diagnosis, TheNodeOfARankWithoutRecords) {
  CaseFile file{.run = "run",
                .evidence = {evidence(Source::kLog, kEnd, 2, "", "ranks 0 and 2 differ in x: 1, 2")}};
  file.world = 3;
  file.hosts = {"n1", "n2"};
  EXPECT_EQ(diagnose(file).cause->name, "different-ranks");
  EXPECT_EQ(diagnose(file).node, "n2");
  file.ranks.push_back({.rank = 0, .node = "n2", .last_time = kEnd});
  EXPECT_EQ(diagnose(file).node, "");
}

// Ranks complete a step together, so the times of steps show that the clock of n2 is 30 s behind.
TEST(Clocks, OfNodesAreAligned) {
  CaseFile file;
  file.ranks = {{.rank = 0, .node = "n1", .began = 100, .last_time = 120},
                {.rank = 1, .node = "n2", .began = 70.5, .last_time = 90}};
  file.evidence = {evidence(Source::kKernel, 89, -1, "n2", "Kernel panic")};
  align_clocks({{0, {{1, 110}, {2, 120}}}, {1, {{1, 80}, {2, 90}}}}, file);
  EXPECT_EQ(file.ranks[1].ahead, -30);
  EXPECT_EQ(file.ranks[1].last_time, 120);
  EXPECT_EQ(file.evidence[0].time, 119);
  // A rank of an earlier job has the same steps, but began at another time.
  file.ranks[1] = {.rank = 1, .node = "n2", .began = 20, .last_time = 90};
  align_clocks({{0, {{1, 110}}}, {1, {{1, 80}}}}, file);
  EXPECT_EQ(file.ranks[1].ahead, 0);
}

// The save after a request to stop takes a large share of a short run, and delays no step.
TEST(ReadRun, OnlySavesThatDelayStepsAreSlow) {
  const ScratchFolder folder("postmortem");
  std::filesystem::create_directories(folder.path() / "events");
  const auto cause = [&](const char* stop) {
    write_file_atomic(folder.path() / "events" / "rank-00000.jsonl",
                      fmt::format(R"({{"event":"begin","step":0,"rank":0,"time":100,"facts":{{"host":"n1"}}}}
{}{{"event":"checkpoint","step":4,"rank":0,"time":105,"facts":{{"state":"saving"}}}}
{{"event":"checkpoint","step":4,"rank":0,"time":108,"facts":{{"state":"durable"}}}}
{{"event":"end","step":4,"rank":0,"time":108,"cause":"SIGTERM","facts":{{"state":"stopped","reason":"SIGTERM"}}}}
)",
                                  stop));
    return std::string(diagnose(read_run(folder.path())).cause->name);
  };
  EXPECT_EQ(cause(""), "slow-storage");
  EXPECT_EQ(cause(R"({"event":"stop","step":4,"rank":0,"time":104,"cause":"SIGTERM","facts":{}}
)"),
            "stopped");
}

// The log has an error that no rule knows.
TEST(ReadRun, AnErrorBeforeTheFirstEventIsNamed) {
  const ScratchFolder folder("postmortem");
  const Path rank = folder.path() / "logs" / "pre_trainer" / "rank-0";
  std::filesystem::create_directories(rank);
  write_file_atomic(rank / "error.log",
                    "[20261129 12:00:00][rank-0/1][ERROR]    [a.cpp:1] : the moon is full\n");
  const auto expect_named = [&](const char* text) {
    const Diagnosis d = diagnose(read_run(folder.path()));
    EXPECT_STREQ(std::string(d.cause->name).c_str(), "other-error");
    EXPECT_EQ(d.summary, text);
  };
  expect_named("fault error: the moon is full");
  // The launcher has recorded the end.
  std::filesystem::create_directories(folder.path() / "events");
  write_file_atomic(
      folder.path() / "events" / "rank-00000.jsonl",
      R"({"event":"fault","step":0,"rank":0,"time":100,"cause":"refused","facts":{"text":"no moon"}}
{"event":"end","step":0,"rank":0,"time":100,"cause":"refused","facts":{"state":"failed","reason":"refused"}}
)");
  expect_named("fault refused: no moon");
}

TEST(ReadRun, LogsBesideTheRecordsAreRead) {
  const ScratchFolder folder("postmortem");
  std::filesystem::create_directories(folder.path() / "kernel");
  std::filesystem::create_directories(folder.path() / "checkpoints");
  write_file_atomic(folder.path() / "kernel" / "n2.log", "x");
  write_file_atomic(folder.path() / "slurm-1.out", "x");
  write_file_atomic(folder.path() / "ending.json", "{}");
  write_file_atomic(folder.path() / "checkpoints" / "latest.txt", "x");
  const std::vector<Path> logs = logs_beside(folder.path());
  ASSERT_EQ(logs.size(), 2U);
  EXPECT_EQ(node_of_file(logs[0], {}), "n2");
  EXPECT_EQ(node_of_file("n7-kernel.log", lost_rank()), "");
  EXPECT_EQ(node_of_file("n2-kernel.log", lost_rank()), "n2");
  EXPECT_EQ(read_run(folder.path()).notes.size(), 1U);  // no records of a run
}

// A finding on the machine of a rank explains the end of the run.
TEST(ReadRun, FindingsOnARanksMachineAreCauses) {
  const struct {
    const char *detector, *text, *cause;
  } kCases[] = {
      {"gpu_error", "gpu 3 reports Xid 79, an error of the driver", "gpu-lost"},
      {"gpu_error", "gpu 3 reports Xid 94, an error of the driver", "gpu-memory-error"},
      {"gpu_memory", "gpu 0 has 1 new uncorrectable ECC errors", "gpu-memory-error"},
      {"network_port", "RDMA port mlx5_2:1 went down 1 times", "network-link"},
      {"kernel_fault", "a disk reported an error: I/O error, dev sda, sector 8", "disk-fault"},
      {"slow_rank", "rank 1 is slow: its own work in a step takes 30 % longer", "nan"},
  };
  for (const auto& of : kCases) {
    const ScratchFolder folder("postmortem");
    std::filesystem::create_directories(folder.path() / "events");
    write_file_atomic(folder.path() / "events" / "rank-00000.jsonl",
                      R"({"event":"begin","step":0,"rank":0,"time":100,"facts":{"host":"n1"}}
{"event":"step","step":3,"rank":0,"time":120,"facts":{}}
{"event":"fault","step":3,"rank":0,"time":121,"cause":"NaN","facts":{"text":"the loss is NaN"}}
{"event":"end","step":3,"rank":0,"time":121,"cause":"NaN","facts":{"state":"failed","reason":"NaN"}}
)");
    write_file_atomic(folder.path() / "events" / "rank-00001.jsonl",
                      std::string(R"({"event":"begin","step":0,"rank":1,"time":100,"facts":{"host":"n2"}}
{"event":"warning","step":3,"rank":1,"time":119,"cause":")") +
                          of.detector + R"(","facts":{"text":")" + of.text + "\"}}\n");
    const CaseFile file = read_run(folder.path());
    const Diagnosis d = diagnose(file);
    ASSERT_NE(d.cause, nullptr) << of.text;
    EXPECT_EQ(d.cause->name, of.cause) << of.text;
    if (d.cause->name != std::string_view("nan")) {
      EXPECT_EQ(d.rank, 1) << of.text;
    }
  }
}

TEST(ReadRun, KeepsOnlyTheLastProcess) {
  const ScratchFolder folder("postmortem");
  std::filesystem::create_directories(folder.path() / "events");
  write_file_atomic(folder.path() / "events" / "rank-00000.jsonl",
                    R"({"event":"begin","step":0,"rank":0,"time":100,"facts":{"host":"n1"}}
{"event":"fault","step":3,"rank":0,"time":103,"cause":"disk full","facts":{"text":"No space left on device"}}
{"event":"begin","step":2,"rank":0,"time":200,"facts":{"host":"n1"}}
{"event":"checkpoint","step":4,"rank":0,"time":204,"facts":{"state":"durable"}}
{"event":"step","step":5,"rank":0,"time":205,"facts":{"iteration":5,"lm_loss":2}}
{"event":"fault","step":5,"rank":0,"time":206,"cause":"NaN","facts":{"text":"the loss is NaN","operator":"layers.1.mlp"}}
{"event":"end","step":5,"rank":0,"time":207,"cause":"NaN","facts":{"state":"failed","reason":"NaN"}}
)");
  std::filesystem::create_directories(folder.path() / "logs" / "pre_trainer" / "rank-0");
  write_file_atomic(folder.path() / "logs" / "pre_trainer" / "rank-0" / "error.log",
                    "old: Permission denied\n");
  const CaseFile file = read_run(folder.path());
  const Diagnosis d = diagnose(file);
  EXPECT_EQ(d.cause->name, "nan");
  EXPECT_EQ(d.rank, 0);
  EXPECT_EQ(d.node, "n1");
  EXPECT_EQ(file.saved_step, 4);
  EXPECT_THAT(d.summary, HasSubstr("layers.1.mlp"));
  const std::string text = report_text(file, d, Terminal{});
  EXPECT_THAT(text, HasSubstr("1 step, after the checkpoint of step 4"));
  EXPECT_THAT(text, HasSubstr("state      crashed (NaN)\n"));
  // The log's line has no time.
  EXPECT_THAT(text, HasSubstr("confidence likely: further causes are named, or the evidence has no time"));
  // The fault came a second before the end of the records.
  EXPECT_EQ(d.first_sign, 206);
  EXPECT_EQ(d.last_event, 207);
  EXPECT_THAT(text, HasSubstr("first sign "));
  EXPECT_THAT(text, HasSubstr("last event "));
  EXPECT_THAT(text, HasSubstr(", after step 5\n"));
  EXPECT_THAT(report_page(file, d, "test"), HasSubstr("layers.1.mlp"));
}

// A damaged checkpoint that was skipped at the start is shown, and is no cause of the end.
TEST(Incidents, ASkippedCheckpointIsShown) {
  const ScratchFolder folder("postmortem");
  std::filesystem::create_directories(folder.path() / "events");
  write_file_atomic(folder.path() / "events" / "rank-00000.jsonl",
                    R"({"event":"begin","step":2,"rank":0,"time":200,"facts":{"host":"n1"}}
{"event":"warning","step":2,"rank":0,"time":200.5,"cause":"damaged_checkpoint","facts":{"detector":"damaged_checkpoint","text":"damaged checkpoint skipped: iter_0000004: model.safetensors is damaged"}}
{"event":"step","step":3,"rank":0,"time":5000,"facts":{"iteration":3,"lm_loss":2}}
{"event":"fault","step":3,"rank":0,"time":5001,"cause":"NaN","facts":{"text":"the loss is NaN"}}
{"event":"end","step":3,"rank":0,"time":5002,"cause":"NaN","facts":{"state":"failed","reason":"NaN"}}
)");
  const CaseFile file = read_run(folder.path());
  const Diagnosis d = diagnose(file);
  EXPECT_EQ(d.cause->name, "nan");
  EXPECT_EQ(d.confidence, Confidence::kCertain);
  EXPECT_THAT(report_text(file, d, Terminal{}), HasSubstr("damaged checkpoint skipped: iter_0000004"));
}

// Incidents that scripts/seed-incidents.py made from real runs, cut to their last lines.
TEST(Incidents, OfAnotherAuthorAreDiagnosed) {
  const Path root = Path(PRIMUS_DOCS).parent_path() / "tests" / "safe" / "incidents" / "golden";
  const auto expected = nlohmann::json::parse(read_file(root / "expected.json", 1 << 20));
  EXPECT_GE(expected.size(), 10U);
  for (const nlohmann::json& one : expected) {
    const Path folder = root / one["folder"].get<std::string>();
    CaseFile file = read_run(folder);
    double newest = 0;
    for (const RankRecord& rank : file.ranks) newest = std::max(newest, rank.last_time);
    const std::vector<Path> logs = logs_beside(folder);
    for (const Path& log : logs) read_log(log, newest, file);
    complete_nodes(logs, file);
    const Diagnosis d = diagnose(file);
    EXPECT_EQ(d.cause->name, one["causes"][0].get<std::string>()) << folder;
    if (one["rank"].is_number()) {
      EXPECT_EQ(d.rank, one["rank"].get<int>()) << folder;
    }
    if (one["node"].is_string()) {
      EXPECT_EQ(d.node, one["node"].get<std::string>()) << folder;
    }
  }
}

// An operator looks up a cause by its name, so docs/postmortem.md must list each one once.
TEST(Causes, AreAllDocumented) {
  const std::string document = read_file(Path(PRIMUS_DOCS) / "postmortem.md", 1 << 20);
  for (const Cause& cause : causes())
    EXPECT_THAT(document, HasSubstr("| `" + std::string(cause.name) + "` |"));
  EXPECT_GE(causes().size(), 40U);
}

}  // namespace
}  // namespace primus::postmortem
