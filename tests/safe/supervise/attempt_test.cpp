#include "safe/supervise/recovery/attempt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace primus::supervise {
namespace {

using ::testing::HasSubstr;

// An attempt with the given lines of rank 0.
Attempt attempt(const std::vector<std::string>& lines) {
  Attempt made;
  EventLine event;
  for (const std::string& line : lines) {
    EXPECT_TRUE(read_event(line, event)) << line;
    made.add(event, 0);
  }
  return made;
}

const std::string kBegin = R"({"event":"begin","step":6,"rank":0,"time":1,"facts":{}})";
const std::string kStep = R"({"event":"step","step":9,"rank":0,"time":2,"facts":{}})";

std::string fault(int rank, const std::string& cause, const std::string& text) {
  return R"({"event":"fault","step":9,"rank":)" + std::to_string(rank) + R"(,"time":3,"cause":")" + cause +
         R"(","facts":{"text":")" + text + R"("}})";
}
std::string end(const std::string& state, const std::string& reason, const std::string& text) {
  return R"({"event":"end","step":9,"rank":0,"time":3,"cause":")" + reason + R"(","facts":{"state":")" +
         state + R"(","reason":")" + reason + R"(","iteration":9,"text":")" + text + R"("}})";
}

EndKind kind(const std::vector<std::string>& lines, const ProcessEnd& process) {
  return attempt(lines).judge(process, {}, {}).kind;
}

std::string saved(const std::string& state, int step) {
  return R"({"event":"checkpoint","step":)" + std::to_string(step) +
         R"(,"rank":0,"time":2,"facts":{"state":")" + state + R"("}})";
}

TEST(Attempt, TellsSnapshotsFromCheckpoints) {
  const std::string from_memory =
      R"({"event":"begin","step":6,"rank":0,"time":1,"facts":{"state_from":"memory"}})";
  Attempt made = attempt({kBegin, saved("durable", 7), saved("copying", 9), kStep});
  JobEnd end = made.judge({.exit_code = 137}, {}, {});
  EXPECT_EQ(end.checkpoint, 7);
  EXPECT_EQ(end.snapshot, 0);
  end = attempt({kBegin, saved("in memory", 8), kStep}).judge({.exit_code = 137}, {}, {});
  EXPECT_EQ(end.checkpoint, 6);
  EXPECT_EQ(end.snapshot, 8);
  made = attempt({from_memory, kStep});
  EXPECT_EQ(made.from(), "memory");
  end = made.judge({.exit_code = 137}, {}, {});
  EXPECT_EQ(end.checkpoint, 0);
  EXPECT_EQ(end.snapshot, 6);
}

TEST(Attempt, NamesEveryEnd) {
  using enum EndKind;
  EXPECT_EQ(kind({kBegin, kStep, end("finished", "", "")}, {.exit_code = 0}), kDone);
  EXPECT_EQ(kind({kBegin, kStep, end("stopped", "exit_interval", "")}, {.exit_code = 0}), kDone);
  EXPECT_EQ(kind({kBegin, kStep}, {.exit_code = 0}), kEarlyExit);
  EXPECT_EQ(kind({}, {.exit_code = 0}), kDone);  // nothing to do
  EXPECT_EQ(kind({kBegin, kStep}, {.exit_code = 137}), kKilled);
  EXPECT_EQ(kind({kBegin, kStep}, {.exit_code = 137, .asked_to_stop = true}), kStopped);
  EXPECT_EQ(kind({kBegin, kStep}, {.exit_code = 137, .memory_kill = true}), kMemoryKill);
  EXPECT_EQ(kind({kBegin, kStep}, {.exit_code = 139}), kCrashed);
  EXPECT_EQ(kind({kBegin, kStep}, {.exit_code = 134}), kCrashed);
  EXPECT_EQ(kind({kBegin}, {.exit_code = 143}), kStopped);  // SIGTERM from another program
  EXPECT_EQ(kind({}, {.exit_code = 2}), kRefused);
  EXPECT_EQ(kind({}, {.exit_code = 1}), kRefused);
  EXPECT_EQ(kind({}, {.exit_code = 127}), kRefused);
  EXPECT_EQ(kind({kBegin}, {.exit_code = 2}), kRefused);
  // The job was accepted, and has completed steps: no thread could be started, for example.
  EXPECT_EQ(kind({kBegin, kStep}, {.exit_code = 2}), kError);
  EXPECT_EQ(kind({kBegin, kStep}, {.exit_code = 1}), kError);
  EXPECT_EQ(kind({}, {.exit_code = 3}), kError);
  EXPECT_EQ(kind({kBegin, end("failed", "NaN", "loss is NaN")}, {.exit_code = 3}), kNan);
  EXPECT_EQ(kind({kBegin, end("failed", "silent corruption", "silent corruption: rank 1 was found to")},
                 {.exit_code = 3}),
            kCorruption);
  EXPECT_EQ(kind({kBegin, end("failed", "silent corruption", "no checkpoint is left")}, {.exit_code = 2}),
            kRefused);
  // No state from before the damage is left: a restart would continue from damaged weights.
  EXPECT_EQ(
      kind({kBegin, kStep, end("failed", "silent corruption", "no checkpoint is left")}, {.exit_code = 2}),
      kRefused);
  EXPECT_EQ(kind({kBegin, kStep, fault(1, "silent corruption", "no checkpoint is left")}, {.exit_code = 2}),
            kRefused);
  EXPECT_EQ(kind({kBegin, end("failed", "out of memory", "out of memory")}, {.exit_code = 3}), kMemory);
  EXPECT_EQ(kind({kBegin, end("failed", "disk full", "No space left on device")}, {.exit_code = 2}),
            kDiskFull);
  EXPECT_EQ(kind({kBegin, end("failed", "error", "cannot write 'x': File too large")}, {.exit_code = 2}),
            kFileLimit);
  EXPECT_EQ(kind({kBegin, end("failed", "a rank was lost", "rank 3 was lost")}, {.exit_code = 3}), kLostRank);
}

TEST(Attempt, AHungPeerIsALostRank) {
  const JobEnd found =
      attempt(
          {kBegin, kStep, end("failed", "error", "rank 0: all_reduce did not complete; rank 1 is missing")})
          .judge({.exit_code = 3}, {}, {});
  EXPECT_EQ(found.kind, EndKind::kLostRank);
  EXPECT_EQ(found.rank, 1);
}

// Rank 1 waits for rank 0, and ends first.
TEST(Attempt, ARankThatWaitedInVainIsNotTheCause) {
  using Line = std::pair<int, std::string>;  // of the events of a rank
  std::vector<Line> lines = {
      {1, fault(1, "error", "rank 1: all_reduce #9 did not complete within 10.0 s; rank 0 is missing")},
      {0, fault(1, "a rank was lost", "rank 1 ended with exit code 3")},
      {0, end("failed", "a rank was lost", "rank 1 ended with exit code 3")}};
  for (int turn = 0; turn < 2; ++turn) {
    Attempt made = attempt({kBegin, kStep});
    EventLine event;
    for (const auto& [rank, line] : lines) {
      ASSERT_TRUE(read_event(line, event));
      made.add(event, rank);
    }
    const JobEnd found = made.judge({.exit_code = 3}, {}, {});
    EXPECT_EQ(found.kind, EndKind::kLostRank);
    EXPECT_EQ(found.rank, 0);
    EXPECT_THAT(found.text, HasSubstr("rank 0 is missing"));
    std::rotate(lines.begin(), lines.begin() + 1, lines.end());
  }
}

// The peers of a rank with an error of its own report its loss.
TEST(Attempt, TheErrorOfARankIsNotItsLoss) {
  using Line = std::pair<int, std::string>;
  std::vector<Line> lines = {{0, fault(0, "disk full", "cannot write 'x': No space left on device")},
                             {0, end("failed", "disk full", "cannot write 'x': No space left on device")},
                             {1, fault(1, "a rank was lost", "rank 0 was lost: its process exited")}};
  for (int turn = 0; turn < 3; ++turn) {
    Attempt made = attempt({kBegin, kStep});
    EventLine event;
    for (const auto& [rank, line] : lines) {
      ASSERT_TRUE(read_event(line, event));
      made.add(event, rank);
    }
    EXPECT_EQ(made.judge({.exit_code = 2}, {}, {}).kind, EndKind::kDiskFull);
    std::rotate(lines.begin(), lines.begin() + 1, lines.end());
  }
}

TEST(Attempt, TellsRankStepCheckpointAndText) {
  const Attempt lost = attempt({kBegin, kStep,
                                R"({"event":"checkpoint","step":8,"rank":0,"time":2,"facts":)"
                                R"({"state":"durable"}})",
                                fault(1, "a rank was lost", "rank 1 was killed by signal 9 (Killed)"),
                                end("failed", "a rank was lost", "rank 1 was killed by signal 9 (Killed)")});
  const JobEnd found = lost.judge({.exit_code = 137}, {}, {});
  EXPECT_EQ(found.began, 6);
  EXPECT_EQ(found.step, 9);
  EXPECT_EQ(found.checkpoint, 8);
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.text, "rank 1 was killed by signal 9 (Killed)");
}

TEST(Attempt, ASaveInFlightIsNoCheckpoint) {
  const Attempt saving =
      attempt({kBegin, R"({"event":"checkpoint","step":8,"rank":0,"time":2,"facts":{"state":"saving"}})"});
  EXPECT_EQ(saving.checkpoint(), 6);
}

TEST(Attempt, AHangIsNoErrorIfTheRunWasComplete) {
  const HangFinding hang{.text = "no process works", .stopped = {}};
  EXPECT_EQ(attempt({kBegin, kStep}).judge({.exit_code = 137}, hang, 1).kind, EndKind::kHang);
  EXPECT_EQ(attempt({kBegin, kStep}).judge({.exit_code = 137}, hang, 1).rank, 1);
  const JobEnd complete = attempt({kBegin, end("finished", "", "")}).judge({.exit_code = 137}, hang, {});
  EXPECT_EQ(complete.kind, EndKind::kDone);
  EXPECT_EQ(complete.exit_code, 0);
}

// A restart would show the result a second time, or train beyond exit_interval.
TEST(Attempt, ALossAfterTheEndOfTheRunIsNoFault) {
  using enum EndKind;
  for (const std::string& last : {end("finished", "", ""), end("stopped", "exit_interval", "")}) {
    for (const int code : {137, 139, 3}) {
      const JobEnd found = attempt({kBegin, kStep, last}).judge({.exit_code = code}, {}, {});
      EXPECT_EQ(found.kind, kDone) << last << code;
      EXPECT_EQ(found.exit_code, 0) << last << code;
    }
    // Settings that do not change a finished run are refused after its end.
    EXPECT_EQ(kind({kBegin, kStep, last}, {.exit_code = 2}), kError);
  }
}

TEST(Attempt, UsesTheErrorLogBeforeTheFirstEvent) {
  const JobEnd found = Attempt().judge({.exit_code = 3, .last_error = "cannot open the device"}, {}, {});
  EXPECT_EQ(found.text, "cannot open the device");
  EXPECT_FALSE(found.began);
}

// On a full disk, a job may be unable to record why it ends.
TEST(Attempt, AnEndWithoutARecordOnAFullDiskIsAFullDisk) {
  const auto judged = [](const std::string& error, std::uint64_t free, bool begun = true) {
    JobEnd end = attempt({kBegin}).judge({.exit_code = 2, .last_error = error}, {}, {});
    end.free_bytes = free;
    end.checkpoint_bytes = 1 << 20;
    blame_full_disk(end, begun);
    return end.kind;
  };
  EXPECT_EQ(judged("", 4096), EndKind::kDiskFull);
  EXPECT_EQ(judged("", 2 << 20), EndKind::kRefused);
  EXPECT_EQ(judged("", 4096, false), EndKind::kRefused);
  EXPECT_EQ(judged("a line of the data is invalid", 4096), EndKind::kRefused);
  // A first start is refused, and a restart waits for space.
  const std::string refusal = "a checkpoint needs 244 KiB, but /run has 4.00 KiB free";
  EXPECT_EQ(judged(refusal, 4096), EndKind::kDiskFull);
  EXPECT_EQ(judged(refusal, 4096, false), EndKind::kRefused);
  EXPECT_EQ(judged(refusal, 2 << 20), EndKind::kDiskFull) << "the next checkpoint is larger than the newest";
}

// The launcher knows only that rank 0 ended, because rank 0 could not write its error.
TEST(Attempt, ARankWithoutARecordOnAFullDiskIsAFullDisk) {
  const auto judged = [](std::vector<std::string> lines, int exit_code, std::uint64_t free) {
    JobEnd end = attempt(lines).judge({.exit_code = exit_code}, {}, {});
    end.free_bytes = free;
    end.checkpoint_bytes = 1 << 20;
    blame_full_disk(end, true);
    return end;
  };
  const std::string lost = fault(0, "a rank was lost", "rank 0 ended with exit code 2");
  EXPECT_EQ(judged({kBegin, lost}, 2, 4096).kind, EndKind::kDiskFull);
  EXPECT_EQ(judged({kBegin, kStep, lost}, 2, 4096).kind, EndKind::kDiskFull);
  EXPECT_EQ(judged({kBegin, kStep, lost}, 2, 2 << 20).kind, EndKind::kLostRank);
  EXPECT_EQ(judged({kBegin, kStep, fault(0, "error", "no thread could be started")}, 2, 4096).kind,
            EndKind::kError);
  // The run had done its last step, and could not record its end.
  const JobEnd early = judged({kBegin, kStep}, 0, 4096);
  EXPECT_EQ(early.kind, EndKind::kDiskFull);
  EXPECT_EQ(early.exit_code, 3);
  EXPECT_EQ(judged({kBegin, kStep}, 0, 2 << 20).kind, EndKind::kEarlyExit);
}

// Rank 0 has the rendezvous, and ended without an error. Another rank reports this.
TEST(Attempt, TheEndOfRankZeroIsItsLoss) {
  const std::string text =
      "the connection to the rendezvous was lost: rank 0 has exited, or its host is unreachable";
  for (const std::vector<std::string>& lines : {std::vector<std::string>{}, {kBegin, kStep}}) {
    Attempt made = attempt(lines);
    EventLine event;
    const std::string line = fault(1, "error", text);
    ASSERT_TRUE(read_event(line, event));
    made.add(event, 1);
    const JobEnd end = made.judge({.exit_code = 3}, {}, {});
    EXPECT_EQ(end.kind, EndKind::kLostRank);
    EXPECT_EQ(end.rank, 0);
  }
}

TEST(Attempt, FindsTheRankInAMessage) {
  EXPECT_EQ(rank_in("rank 0: all-reduce: rank 12 was lost"), 12);
  EXPECT_EQ(rank_in("rank 3 was killed by signal 9"), 3);
  EXPECT_EQ(rank_in("the connection to the rendezvous was lost: rank 0 has exited, or its host"), 0);
  EXPECT_EQ(rank_in("rank 0: all_reduce #5110 did not complete within 10.0 s; rank 1 is missing"), 1);
  const std::string waits = "rank 0: all_gather #297 of group 'data.0' did not complete within 10.0 s; ";
  EXPECT_EQ(rank_in(waits + "rank 1 has not called it: its last collective in that group was all_reduce #2"),
            1);
  EXPECT_EQ(
      rank_in(waits + "rank 3 is in recv #4 (8 fp32) and waits for rank 2; rank 2 has been idle for 9 s"), 2);
  EXPECT_EQ(rank_in(waits + "rank 5 is in barrier #9; rank 6 is in barrier #9"), 5);
  EXPECT_EQ(rank_in("the rank was lost"), std::nullopt);
  EXPECT_EQ(rank_in(""), std::nullopt);
}

}  // namespace
}  // namespace primus::supervise
