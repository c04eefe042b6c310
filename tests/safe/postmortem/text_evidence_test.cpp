// Tests reading of time, rank, node and cause from lines of logs.
#include "safe/postmortem/text_evidence.h"

#include <gmock/gmock.h>

#include <ctime>

#include "base/files/scratch_folder.h"
#include "safe/postmortem/incident_folder.h"

namespace primus::postmortem {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

double local(int year, int month, int day, int hour, int minute, int second) {
  std::tm tm{};
  tm.tm_year = year - 1900;
  tm.tm_mon = month - 1;
  tm.tm_mday = day;
  tm.tm_hour = hour;
  tm.tm_min = minute;
  tm.tm_sec = second;
  tm.tm_isdst = -1;
  return static_cast<double>(std::mktime(&tm));
}

std::string cause_of(std::string_view line) {
  const Cause* const cause = match(source_of(line), line);
  return cause ? std::string(cause->name) : "";
}

TEST(LineFacts, TimesOfAllForms) {
  const double expected = local(2026, 11, 28, 5, 0, 31);
  EXPECT_EQ(facts_of("[20261128 05:00:31][rank-2/4][ERROR] x", 0).time, expected);
  EXPECT_EQ(facts_of("[Sat Nov 28 05:00:31 2026] mce: x", 0).time, expected);
  EXPECT_EQ(facts_of("Nov 28 05:00:31 n2 kernel: x", expected).time, expected);
  EXPECT_EQ(facts_of("[2026-11-28T05:00:31.250] _slurm_rpc", 0).time, expected + 0.25);
  EXPECT_EQ(facts_of("2026-11-28T05:00:31Z x", 0).time, 1795842031);
  EXPECT_EQ(facts_of("2026-11-28T06:30:31,5+0130 x", 0).time, 1795842031.5);
  EXPECT_EQ(facts_of("2026-13-28T05:00:31Z x", 0).time, 0);
  EXPECT_EQ(facts_of("nothing", 0).time, 0);
  // A log of December that is read in January is of the previous year.
  EXPECT_EQ(facts_of("Dec 31 23:59:59 n2 kernel: x", local(2027, 1, 1, 0, 10, 0)).time,
            local(2026, 12, 31, 23, 59, 59));
}

// A rank that reports what stopped it is not the rank at fault.
TEST(LineFacts, TheBlamedRank) {
  EXPECT_EQ(facts_of("[20260101 12:00:00][rank-0/4][ERROR] : rank 0: all_reduce #3 of group 'data' did not "
                     "complete within 10.0 s; rank 2 is missing and does not answer",
                     0)
                .rank,
            2);
  EXPECT_EQ(facts_of("rank 0 is in all_reduce #3 and waits for rank 1; rank 1 has not called it", 0).rank, 1);
  EXPECT_EQ(facts_of("rank 5 was lost: its process exited", 0).rank, 5);
  EXPECT_EQ(facts_of("[rank-3/4] the file was lost", 0).rank, 3);
  EXPECT_EQ(facts_of("[rank-0/2][ERROR]    [---pretrain.cpp:437] : rank 1: cannot save checkpoint", 0).rank,
            1);
}

TEST(LineFacts, RanksAndNodes) {
  EXPECT_EQ(facts_of("[20261128 05:00:31][rank-2/4][ERROR] x", 0).rank, 2);
  const LineFacts srun = facts_of("srun: error: n2: task 3: Killed", 0);
  EXPECT_EQ(srun.rank, 3);
  EXPECT_EQ(srun.node, "n2");
  EXPECT_EQ(facts_of("Nov 28 05:00:31 gpu-17.cluster kernel: mce: x", 0).node, "gpu-17.cluster");
  EXPECT_EQ(
      facts_of("slurmstepd: error: *** JOB 26 ON n4 CANCELLED AT 2026-11-28T04:22:11 DUE TO TIME LIMIT ***",
               0)
          .node,
      "n4");
  EXPECT_EQ(facts_of("requeue job JobId=26 due to failure of node n2", 0).node, "n2");
}

TEST(Causes, LinesOfKernelsSchedulersAndPrograms) {
  EXPECT_EQ(cause_of("[Sat Nov 28 05:00:31 2026] Out of memory: Killed process 4711 (primus) total-vm:1kB"),
            "host-out-of-memory");
  EXPECT_EQ(
      cause_of("Nov 28 05:00:31 n2 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."),
      "gpu-lost");
  EXPECT_EQ(cause_of("Nov 28 05:00:31 n2 kernel: NVRM: Xid (PCI:0000:3b:00): 94, Contained ECC error"),
            "gpu-memory-error");
  EXPECT_EQ(cause_of("Nov 28 05:00:31 n2 kernel: amdgpu 0000:03:00.0: amdgpu: GPU reset begin!"),
            "gpu-reset");
  EXPECT_EQ(cause_of("Nov 28 05:00:31 n2 kernel: mlx5_core 0000:17:00.0 ib0: Link down"), "network-link");
  EXPECT_EQ(cause_of("Nov 28 05:00:31 n2 kernel: nfs: server fs1 not responding, timed out"),
            "shared-storage");
  EXPECT_EQ(cause_of("slurmstepd: error: Detected 1 oom_kill event in StepId=26.0"), "host-out-of-memory");
  EXPECT_EQ(
      cause_of("slurmstepd: error: *** JOB 26 ON n4 CANCELLED AT 2026-11-28T04:22:11 DUE TO TIME LIMIT ***"),
      "time-limit");
  EXPECT_EQ(
      cause_of("slurmstepd: error: *** JOB 26 ON n4 CANCELLED AT 2026-11-28T04:22:11 DUE TO PREEMPTION ***"),
      "preempted");
  EXPECT_EQ(cause_of("slurmstepd: error: *** JOB 26 ON n4 CANCELLED AT 2026-11-28T04:22:11 ***"),
            "cancelled");
  EXPECT_EQ(cause_of("srun: error: n2: task 3: Killed"), "killed");
  EXPECT_EQ(cause_of("RuntimeError: CUDA error: an illegal memory access was encountered"),
            "gpu-access-fault");
  EXPECT_EQ(cause_of("error: cannot write 'x': No space left on device"), "disk-full");
  EXPECT_EQ(cause_of("[20261128 05:00:31][rank-2/4][INFO] iteration 3"), "");
}

// A record that lacks a key is corrected by its author; a damaged file is restored.
TEST(Causes, ErrorsAtPlacesOfFiles) {
  EXPECT_EQ(cause_of("/data/part.jsonl:401:10: error: the value of 'text' is a number, not a string"),
            "bad-record");
  EXPECT_EQ(cause_of("/data/part.jsonl:7:1: error: the line has no key 'text'; it has 'txt'"), "bad-record");
  EXPECT_EQ(cause_of("/data/p.json:7:1: error: the record has no key 'chosen'"), "bad-record");
  EXPECT_EQ(cause_of("/data/p.ndjson:7:1: error: the record has no key 'chosen'"), "bad-record");
  EXPECT_EQ(cause_of("/data/part.jsonl:401:10: error: broken JSON: the text ends in a string"),
            "damaged-file");
  EXPECT_EQ(cause_of("/m/config.json:3:5: error: the value of 'hidden_size' is a string, not a number"),
            "wrong-setting");
  EXPECT_EQ(cause_of("/m/tokenizer.json:3:5: error: the model type 'x' is unknown"), "wrong-setting");
}

// Messages that name their cause, but that the first rules missed, and harmless ones that they took for
// causes.
TEST(Causes, LinesOfJobsThatFailEarly) {
  EXPECT_EQ(cause_of("command line: error: unknown key 'micro_batch'"), "wrong-setting");
  EXPECT_EQ(cause_of("error: port 60597 of 10.0.0.1 is in use by another program"), "port-in-use");
  EXPECT_EQ(cause_of("error: cannot find the device plug-in 'cuda': no libprimus_cuda.so in /opt"),
            "library-missing");
  EXPECT_EQ(cause_of("error: cuda: out of device memory: 29.01 GiB asked for"), "device-out-of-memory");
  EXPECT_EQ(cause_of("error: ranks 0 and 2 differ in the version of Primus: 0.3.0, 0.2.9"),
            "different-ranks");
  EXPECT_EQ(cause_of("x: the bytes of tensor 'w' differ from their CRC32C"), "damaged-file");
  EXPECT_EQ(cause_of("no checkpoint in 'run/checkpoints' can be used:"), "damaged-file");
  EXPECT_EQ(cause_of("error: 'x.bin' changed from 543710 to 2000 bytes while it was in use"), "damaged-file");
  EXPECT_EQ(cause_of("error: data '/d/nothere.txt' does not exist"), "missing-file");
  EXPECT_EQ(cause_of("error: the tokenizer_model '/d/t' does not exist"), "missing-file");
  EXPECT_EQ(cause_of("error: the run needs 148 MiB of memory, but 54.6 MiB of 120 MiB are free"),
            "host-out-of-memory");
  EXPECT_EQ(
      cause_of("error: the run needs 9 GiB of the device's memory, but of the 8 GiB of x, 7 GiB are free"),
      "device-out-of-memory");
  const Cause* const quota = match(Source::kEvent, "fault disk full: cannot save 'x': Disk quota exceeded");
  ASSERT_NE(quota, nullptr);
  EXPECT_EQ(quota->name, "disk-quota");
  EXPECT_EQ(cause_of("error: a checkpoint needs 21.1 MiB, but output/run has 12.0 MiB free"), "disk-full");
  EXPECT_EQ(cause_of("            HW Power Brake Slowdown : Active"), "gpu-power");
  EXPECT_EQ(cause_of("            HW Power Brake Slowdown : Not Active"), "");
  EXPECT_EQ(cause_of("Nov 28 05:00:31 n2 kernel: mce: [Hardware Error]: Machine check events logged"), "");
  EXPECT_EQ(
      cause_of("Nov 28 05:00:31 n2 kernel: mce: [Hardware Error]: CPU 9: Machine Check Exception: 5 Bank 1"),
      "machine-check");
}

TEST(LineFacts, TheRankThatDiffersOrHasExited) {
  EXPECT_EQ(facts_of("ranks 0 and 2 differ in the version of Primus: 0.3.0, 0.2.9", 0).rank, 2);
  EXPECT_EQ(
      facts_of("[rank-1/4] the connection was lost: rank 0 has exited, or its host is unreachable", 0).rank,
      0);
  // The node that reports a failure is another one than the node that failed.
  EXPECT_EQ(facts_of("slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT x DUE TO NODE FAILURE ***", 0).node,
            "");
  EXPECT_EQ(facts_of("n2:4711:4712 [1] transport/net_ib.cc:1 NCCL WARN NET/IB : port error", 0).node, "n2");
}

TEST(ReadText, TablesOfSlurmAndKubernetes) {
  const ScratchFolder folder("postmortem");
  const Path sacct = folder.path() / "sacct.txt", events = folder.path() / "events.txt";
  write_file_atomic(sacct,
                    "JobID|JobName|State|ExitCode|Start|End|NodeList\n"
                    "26|x|TIMEOUT|0:0|2026-11-28T04:00:31|2026-11-28T05:00:31|n1,n2\n");
  write_file_atomic(
      events,
      "2026-11-28T05:00:00Z Normal  Scheduled pod/run-1 Successfully assigned train/run-1 to n2\n"
      "2026-11-28T05:00:31Z Warning Evicted   pod/run-1 The node was low on resource: memory.\n");
  CaseFile into;
  read_log(sacct, 0, into);
  read_log(events, 0, into);
  complete_nodes({}, into);
  EXPECT_THAT(into.hosts, testing::ElementsAre("n1", "n2"));
  std::vector<std::string> found;
  for (const Evidence& one : into.evidence) {
    if (!one.cause) continue;
    found.push_back(std::string(one.cause->name) + " " + one.node);
    EXPECT_NE(one.time, 0);
  }
  EXPECT_THAT(found, testing::UnorderedElementsAre("time-limit ", "evicted n2"));
}

TEST(ReadText, AProcessOfAnotherProgramIsNoCause) {
  const ScratchFolder folder("postmortem");
  const Path file = folder.path() / "kernel.log";
  write_file_atomic(
      file, "Nov 28 05:00:31 n2 kernel: Out of memory: Killed process 7 (node_exporter) total-vm:1kB\n");
  CaseFile into;
  read_text(file, {}, 0, into);
  EXPECT_THAT(into.evidence, IsEmpty());
}

TEST(ReadText, KeepsFewLinesOfACauseAndHidesSecrets) {
  const ScratchFolder folder("postmortem");
  const Path file = folder.path() / "job.out";
  std::string text = "error: HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789 Permission denied \x1b[31m\n";
  for (int i = 0; i < 1000; ++i) text += "error: Broken pipe " + std::to_string(i) + "\n";
  write_file_atomic(file, text);
  CaseFile into;
  read_text(file, 5, 0, into);
  EXPECT_THAT(into.evidence, SizeIs(9));
  for (const Evidence& one : into.evidence) {
    EXPECT_THAT(one.text, Not(HasSubstr("hf_abc")));
    EXPECT_THAT(one.text, Not(HasSubstr("\x1b")));
    EXPECT_EQ(one.rank, 5);
  }
}

TEST(ReadText, EventsOfKubernetes) {
  const ScratchFolder folder("postmortem");
  const Path file = folder.path() / "events.json";
  write_file_atomic(file,
                    R"({"kind":"List","items":[7,{"reason":"NodeNotReady","message":"Node n7 is not ready",
    "lastTimestamp":"2026-11-28T05:00:31Z","involvedObject":{"kind":"Node","name":"n7"}},
    {"reason":"Pulled","message":"fine","lastTimestamp":null}]})");
  CaseFile into;
  read_text(file, {}, 0, into);
  ASSERT_THAT(into.evidence, SizeIs(1));
  EXPECT_EQ(into.evidence[0].cause->name, "node-lost");
  EXPECT_EQ(into.evidence[0].node, "n7");
  EXPECT_EQ(into.evidence[0].time, 1795842031);
}

TEST(ReadText, DamagedFilesGiveNoEvidence) {
  const ScratchFolder folder("postmortem");
  const Path file = folder.path() / "x";
  for (const std::string& text : {std::string("{\"items\": [[[["), std::string(100, '\0'),
                                  std::string("{\"items\":3}"), std::string(1 << 21, 'a')}) {
    write_file_atomic(file, text);
    CaseFile into;
    read_text(file, {}, 0, into);
    EXPECT_THAT(into.evidence, IsEmpty());
  }
}

}  // namespace
}  // namespace primus::postmortem
