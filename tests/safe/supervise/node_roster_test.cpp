#include "safe/supervise/nodes/node_roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace primus::supervise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using RosterStep = Roster::Step;

// A roster in virtual time, whose nodes send their messages unless they are silenced.
class NodesOfJob {
 public:
  NodesOfJob(int nodes, int places, std::vector<std::vector<int>> switches = {})
      : nodes_(nodes), roster(nodes, places, {}, 0, std::move(switches)) {}

  void join_all() {
    for (int node = 0; node < nodes_; ++node) join(node);
  }
  void join(int node) { roster.joined(node, "h" + std::to_string(node), now); }
  // Passes time, until the next step or for so many seconds.
  RosterStep pass(double seconds) {
    for (const double until = now + seconds;; now += 0.5) {
      for (int node = 0; node < nodes_; ++node)
        if (node != silent) roster.heard(node, now);
      const RosterStep step = roster.step(now);
      if (step != RosterStep::kNothing || now >= until) return step;
    }
  }
  void start() {
    ASSERT_EQ(pass(1), RosterStep::kStart);
    roster.start(now);
  }
  void ended(int node, int code) { roster.ended(node, roster.attempt(), {.exit_code = code}, now); }
  // Ends the attempt: all nodes of the job report their end.
  void end_all(int code) {
    for (const int node : roster.places())
      if (node >= 0) ended(node, code);
  }

 private:
  int nodes_;

 public:
  double now = 0;
  int silent = -1;
  Roster roster;
};

TEST(Roster, AnAttemptStartsWhenAllNodesAreHere) {
  NodesOfJob job(2, 2);
  job.join(0);
  EXPECT_EQ(job.pass(100), RosterStep::kNothing);
  job.join(1);
  EXPECT_EQ(job.pass(0), RosterStep::kStart);
  EXPECT_EQ(job.roster.start(job.now), 1U);
  EXPECT_THAT(job.roster.places(), ElementsAre(0, 1));
  EXPECT_EQ(job.pass(1000), RosterStep::kNothing);
  job.ended(0, 0);
  EXPECT_EQ(job.pass(1000), RosterStep::kNothing);  // node 1 may still write
  job.ended(1, 0);
  EXPECT_EQ(job.pass(0), RosterStep::kOver);
  EXPECT_EQ(job.roster.cause().exit_code, 0);
  EXPECT_FALSE(job.roster.lost_node());
}

TEST(Roster, NodesThatNeverComeAreNamed) {
  NodesOfJob job(3, 3);
  job.join(0);
  job.join(2);
  EXPECT_EQ(job.pass(700), RosterStep::kGiveUp);
  EXPECT_GE(job.now, 600);
  EXPECT_THAT(job.roster.problem().text, HasSubstr("node 1 is missing"));
}

// The peers of a killed rank fail because of it, and may report earlier.
TEST(Roster, AKilledProcessIsTheCause) {
  NodesOfJob job(2, 2);
  job.join_all();
  job.start();
  job.ended(0, 3);
  EXPECT_EQ(job.pass(1), RosterStep::kNothing);
  job.ended(1, 137);
  EXPECT_EQ(job.pass(0), RosterStep::kOver);
  EXPECT_EQ(job.roster.cause().exit_code, 137);
  EXPECT_EQ(job.roster.cause_node(), 1);
}

TEST(Roster, NodesThatDoNotEndThemselvesAreEnded) {
  NodesOfJob job(2, 2);
  job.join_all();
  job.start();
  job.ended(1, 3);
  const double failed = job.now;
  EXPECT_EQ(job.pass(100), RosterStep::kEnd);
  EXPECT_LE(job.now - failed, 2.5);
  job.ended(0, 137);  // killed by its supervisor, so no cause
  EXPECT_EQ(job.pass(0), RosterStep::kOver);
  EXPECT_EQ(job.roster.cause().exit_code, 3);
  EXPECT_EQ(job.roster.cause_node(), 1);
}

TEST(Roster, ASpareTakesThePlaceOfALostNode) {
  NodesOfJob job(4, 3);
  job.join_all();
  job.start();
  EXPECT_THAT(job.roster.places(), ElementsAre(0, 1, 2));
  job.roster.lost(1, "its connection ended", job.now);
  EXPECT_EQ(job.pass(0), RosterStep::kEnd);
  job.ended(0, 137);
  job.ended(2, 137);
  EXPECT_EQ(job.pass(0), RosterStep::kOver);
  ASSERT_TRUE(job.roster.lost_node());
  EXPECT_EQ(job.roster.lost_node()->node, 1);
  EXPECT_EQ(job.roster.lost_node()->text, "node 1 (h1) was lost: its connection ended");
  job.roster.next(job.now + 1, job.now);
  EXPECT_EQ(job.pass(0.5), RosterStep::kNothing);  // the delay of the restart
  EXPECT_EQ(job.pass(1), RosterStep::kStart);
  job.roster.start(job.now);
  EXPECT_THAT(job.roster.places(), ElementsAre(0, 3, 2));
  const auto taken = job.roster.take_replacements();
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].node, 3);
  EXPECT_EQ(taken[0].place, 1);
  // The lost node returns, and is the next spare.
  job.join(1);
  job.roster.lost(2, "its connection ended", job.now);
  EXPECT_EQ(job.pass(0), RosterStep::kEnd);
  job.ended(0, 137);
  job.ended(3, 137);
  EXPECT_EQ(job.pass(0), RosterStep::kOver);
  job.roster.next(job.now, job.now);
  EXPECT_EQ(job.pass(1), RosterStep::kStart);
  job.roster.start(job.now);
  EXPECT_THAT(job.roster.places(), ElementsAre(0, 3, 1));
}

// Nodes 3 and 4 are spares; node 4 is below the switch of the lost node 2.
TEST(Roster, TheNearestSpareTakesAPlace) {
  NodesOfJob job(5, 3, {{0, 1}, {0, 1}, {0, 2}, {0, 1}, {0, 2}});
  job.join_all();
  job.start();
  job.roster.lost(2, "its connection ended", job.now);
  EXPECT_EQ(job.pass(0), RosterStep::kEnd);
  job.ended(0, 137);
  job.ended(1, 137);
  EXPECT_EQ(job.pass(0), RosterStep::kOver);
  job.roster.next(job.now, job.now);
  EXPECT_EQ(job.pass(1), RosterStep::kStart);
  job.roster.start(job.now);
  EXPECT_THAT(job.roster.places(), ElementsAre(0, 1, 4));
}

TEST(Roster, ASilentNodeIsLostAfterTenSeconds) {
  NodesOfJob job(2, 2);
  job.join_all();
  job.start();
  const double silent = job.now;
  job.silent = 1;
  EXPECT_EQ(job.pass(100), RosterStep::kEnd);
  EXPECT_GT(job.now - silent, 10);
  EXPECT_LE(job.now - silent, 11);
  EXPECT_THAT(job.roster.take_silent(), ElementsAre(1));
  EXPECT_THAT(job.roster.lost_node()->text, HasSubstr("no message for 10 s"));
  job.ended(0, 137);
  EXPECT_EQ(job.pass(0), RosterStep::kOver);
  // No spare takes its place, and it does not return.
  job.roster.next(job.now, job.now);
  const double over = job.now;
  EXPECT_EQ(job.pass(1000), RosterStep::kGiveUp);
  EXPECT_LE(job.now - over, 61);
  EXPECT_THAT(job.roster.problem().text, HasSubstr("node 1 (h1) is missing after 60 s"));
  EXPECT_THAT(job.roster.problem().hint, HasSubstr("--exclude=h1"));
}

// The node says so itself, so it is not recorded as silent.
TEST(Roster, ANodeWhoseProcessesRemainIsLost) {
  NodesOfJob job(3, 2);
  job.join_all();
  job.start();
  job.roster.end_attempt();  // a hang
  EXPECT_EQ(job.pass(0), RosterStep::kEnd);
  job.ended(0, 137);
  EXPECT_EQ(job.pass(30), RosterStep::kNothing);
  job.roster.lost(1, "process 12 cannot be ended", job.now);
  EXPECT_EQ(job.pass(0), RosterStep::kOver);
  EXPECT_THAT(job.roster.take_silent(), ElementsAre());
  EXPECT_FALSE(job.roster.lost_node());  // the hang is the cause
  job.roster.next(job.now, job.now);
  EXPECT_EQ(job.pass(1), RosterStep::kStart);
  job.roster.start(job.now);
  EXPECT_THAT(job.roster.places(), ElementsAre(0, 2));
}

TEST(Roster, ALostNodeMayReturn) {
  NodesOfJob job(2, 2);
  job.join_all();
  job.start();
  job.roster.lost(1, "its connection ended", job.now);
  EXPECT_EQ(job.pass(0), RosterStep::kEnd);
  job.ended(0, 3);
  EXPECT_EQ(job.pass(0), RosterStep::kOver);
  job.roster.next(job.now, job.now);
  EXPECT_EQ(job.pass(30), RosterStep::kNothing);
  job.join(1);
  EXPECT_EQ(job.pass(0), RosterStep::kStart);
}

// Messages of an earlier attempt have no effect.
TEST(Roster, OldEndsAreIgnored) {
  NodesOfJob job(2, 2);
  job.join_all();
  job.start();
  job.end_all(3);
  EXPECT_EQ(job.pass(0), RosterStep::kOver);
  job.roster.next(job.now, job.now);
  job.start();
  job.roster.ended(1, 1, {.exit_code = 137}, job.now);
  job.roster.ended(1, 7, {.exit_code = 137}, job.now);
  EXPECT_EQ(job.pass(100), RosterStep::kNothing);
  EXPECT_TRUE(job.roster.works(1));
}

TEST(Roster, AllNodesMustSeeTheCheckpoint) {
  NodesOfJob job(2, 2);
  job.join_all();
  job.roster.sees_checkpoint(0, 30);
  EXPECT_EQ(job.pass(30), RosterStep::kNothing);
  job.roster.sees_checkpoint(1, 30);
  EXPECT_EQ(job.pass(0), RosterStep::kStart);
  job.roster.sees_checkpoint(1, 20);
  EXPECT_EQ(job.pass(100), RosterStep::kGiveUp);
  EXPECT_EQ(job.roster.problem().reason, "checkpoint not shared");
  EXPECT_THAT(job.roster.problem().text, HasSubstr("node 1 (h1) sees the checkpoint of step 20"));
}

// A node whose processes do not end, because the kernel waits for a device, does not block the job.
TEST(Roster, ANodeThatDoesNotEndIsLost) {
  NodesOfJob job(3, 2);
  job.join_all();
  job.start();
  job.ended(0, 3);
  EXPECT_EQ(job.pass(10), RosterStep::kEnd);
  EXPECT_EQ(job.pass(100), RosterStep::kOver);
  EXPECT_THAT(job.roster.take_silent(), ElementsAre(1));
  EXPECT_FALSE(job.roster.lost_node());  // node 0 failed earlier
  job.roster.next(job.now, job.now);
  EXPECT_EQ(job.pass(1), RosterStep::kStart);
  job.roster.start(job.now);
  EXPECT_THAT(job.roster.places(), ElementsAre(0, 2));
}

TEST(Roster, ASpareStartsForANodeThatIsLate) {
  NodesOfJob job(3, 2);
  job.join(0);
  job.join(2);
  EXPECT_EQ(job.pass(9), RosterStep::kNothing);
  EXPECT_EQ(job.pass(2), RosterStep::kStart);
  job.roster.start(job.now);
  EXPECT_THAT(job.roster.places(), ElementsAre(0, 2));
}

TEST(Roster, AHangEndsTheAttempt) {
  NodesOfJob job(2, 2);
  job.join_all();
  job.start();
  job.roster.end_attempt();
  EXPECT_EQ(job.pass(0), RosterStep::kEnd);
  job.end_all(137);
  EXPECT_EQ(job.pass(0), RosterStep::kOver);
}

TEST(Roster, TellsWhatTheJobWaitsFor) {
  NodesOfJob job(3, 2);
  const auto awaited = [&] {
    const auto wait = job.roster.awaited(job.now);
    return wait ? std::pair(wait->what, wait->until) : std::pair(std::string(), 0.0);
  };
  job.join(0);
  job.pass(2);
  EXPECT_EQ(awaited(), std::pair(std::string("node 1 or a spare"), RosterLimits{}.first_wait));
  job.join(1);
  job.start();
  EXPECT_EQ(awaited().first, "") << "the job runs";
  job.roster.lost(1, "gone", job.now);
  job.end_all(137);
  ASSERT_EQ(job.pass(30), RosterStep::kOver);
  job.roster.next(job.now + 4, job.now);
  EXPECT_EQ(awaited().first, "") << "the delay of the restart";
  const double begins = job.now + 4;
  job.pass(5);
  EXPECT_EQ(awaited(), std::pair(std::string("node 1 (h1) or a spare"), begins + RosterLimits{}.wait));
  job.join(1);
  job.roster.sees_checkpoint(0, 20);
  EXPECT_EQ(job.pass(0), RosterStep::kNothing);
  EXPECT_EQ(awaited().first, "the newest checkpoint (step 20) on all machines");
}

}  // namespace
}  // namespace primus::supervise
