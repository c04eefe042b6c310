// Simulations of the supervisors' agreement in virtual time: the code of Succession and Agreement, with
// random kills, machines that go off, cuts of the network, and returns. scripts/mutate-agreement.py shows
// that they find errors in that code.
#include "safe/supervise/agreement/succession.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "safe/supervise/succession_world.h"

namespace primus::supervise {
namespace {

TEST(Succession, AllFollowNodeZero) {
  World world(5, 1);
  EXPECT_LT(world.pass_until([&] { return world.all_follow(0); }, 10), 3);
  world.pass(20);
  EXPECT_GT(world.agreements, 3);
  EXPECT_THAT(world.wrong(), ::testing::IsEmpty());
}

TEST(Succession, TheLowestLivingNodeFollowsALostLeader) {
  for (const bool off : {false, true}) {
    World world(5, 2);
    world.pass(20);
    world.kill(0, off);
    EXPECT_LT(world.pass_until([&] { return world.all_follow(1); }, 60), off ? 13 : 3);
    const int before = world.agreements;
    world.pass(20);
    EXPECT_GT(world.agreements, before);
    world.kill(1, off);
    world.kill(2, off);
    EXPECT_GE(world.pass_until([&] { return world.leader() >= 0; }, 60), 60)
        << "two of four without the chair";
    EXPECT_FALSE(world.alive(3)) << "a minority ends";
    EXPECT_THAT(world.wrong(), ::testing::IsEmpty());
  }
}

// Machines that are off do not answer. Waiting for one after the other would take longer than the rest waits.
TEST(Succession, ManyDeadLowerNodesDelayNothing) {
  for (const int dead : {8, 29}) {
    World world(2 * dead + 3, 6);
    ASSERT_LT(world.pass_until([&] { return world.all_follow(0); }, 60), 20);
    world.pass(5);
    for (int node = 0; node <= dead; ++node) world.kill(node, true);
    const double silence = SuccessionLimits{}.follower_silence;
    EXPECT_LT(world.pass_until([&] { return world.all_follow(dead + 1); }, 60), silence + 8) << dead;
    EXPECT_THAT(world.wrong(), ::testing::IsEmpty());
  }
}

TEST(Succession, AMinorityEndsAndTheMajorityGoesOn) {
  World world(5, 3);
  world.pass(20);
  for (const int a : {0, 1})
    for (const int b : {2, 3, 4}) world.cut(a, b, true);
  world.pass(90);
  EXPECT_FALSE(world.alive(0));
  EXPECT_FALSE(world.alive(1));
  EXPECT_EQ(world.leader(), 2);
  world.heal();
  world.start(0);
  EXPECT_LT(world.pass_until([&] { return world.all_follow(2); }, 30), 5) << "node 0 leads no more";
  EXPECT_THAT(world.wrong(), ::testing::IsEmpty());
}

// If one of two nodes is lost, only the leader continues; the other one waits for its return.
TEST(Succession, OfTwoNodesOnlyTheLeaderGoesOn) {
  World world(2, 4);
  world.pass(20);
  world.kill(1, false);
  world.pass(20);
  EXPECT_EQ(world.leader(), 0);
  world.start(1);
  EXPECT_LT(world.pass_until([&] { return world.all_follow(0); }, 30), 5);
  world.pass(5);
  world.kill(0, false);
  world.pass(5);
  EXPECT_EQ(world.leader(), -1);
  world.start(0);
  EXPECT_LT(world.pass_until([&] { return world.all_follow(0); }, 30), 8);
  EXPECT_EQ(world.jobs(), 1U);
  world.kill(0, true);
  world.pass(60);
  EXPECT_FALSE(world.alive(1));
  EXPECT_THAT(world.wrong(), ::testing::IsEmpty());
}

// The leader needs node 0's vote, and sends each state once.
TEST(Succession, AFollowerKeepsAVoteLater) {
  World world(3, 7);
  world.pass(10);
  world.kill(0, false);
  ASSERT_LT(world.pass_until([&] { return world.leader() == 1; }, 10), 10);
  world.start(0);
  ASSERT_LT(world.pass_until([&] { return world.all_follow(1); }, 10), 10);
  world.pass(5);
  world.kill(2, false);
  world.pass(10);
  ASSERT_EQ(world.code(1).agreement().state().now.members.size(), 2U);
  world.fail_vote();
  world.pass_until([&] { return world.has_failed_vote(); }, 30);
  ASSERT_TRUE(world.has_failed_vote());
  const int before = world.agreements;
  world.pass(30);
  EXPECT_GT(world.agreements, before + 3);
  EXPECT_TRUE(world.all_follow(1));
  EXPECT_THAT(world.wrong(), ::testing::IsEmpty());
}

// Returns the promises that the node sends now: the view, and the version of the state that it has.
std::vector<std::pair<std::uint64_t, std::uint64_t>> promises(Succession& code) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> sent;
  for (const auto& [kind, to, message] : code.acts()) {
    if (message.kind == LeadershipMessage::Kind::kPromise)
      sent.emplace_back(message.view, message.state.version);
  }
  return sent;
}

// A candidate asks once. Without this promise, a leader that needs it gives up after seven seconds.
TEST(Succession, AFollowerPromisesLater) {
  using Kind = LeadershipMessage::Kind;
  bool fails = false;
  const Delegate self{.node = 0, .life = 7, .address = "c", .port = 3};
  const Delegate leader{.node = 1, .life = 5, .address = "a", .port = 1};
  Succession zero(3, self, {leader}, false, 0, {}, {.keep = [&](const Votes&) { return !fails; }});
  double now = 0;
  for (; now < 5 && zero.leader() != 1; now += 0.1) {
    zero.tick(now);
    for (const Succession::Act& one : zero.acts())
      if (one.kind == Succession::Act::Kind::kCall) zero.connected(one.to.node, now);
  }
  const Assembly members{.members = {self, leader}, .chair = 1};
  zero.receive({.kind = Kind::kState, .state = {.job = 1, .view = 4, .version = 1, .now = members}}, now);
  ASSERT_EQ(zero.role(), Succession::Role::kFollowing);
  EXPECT_THAT(promises(zero), ::testing::IsEmpty());
  fails = true;
  zero.receive({.kind = Kind::kPrepare, .view = 7}, now);
  zero.tick(now + 0.1);
  EXPECT_THAT(promises(zero), ::testing::IsEmpty()) << "the file cannot be written";
  fails = false;
  zero.tick(now + 0.2);
  EXPECT_THAT(promises(zero), ::testing::ElementsAre(::testing::Pair(7, 1)));
  EXPECT_EQ(zero.role(), Succession::Role::kFollowing);
  zero.tick(now + 0.3);
  EXPECT_THAT(promises(zero), ::testing::IsEmpty()) << "one promise suffices";
  zero.receive({.kind = Kind::kPrepare, .view = 4}, now + 0.3);
  EXPECT_THAT(promises(zero), ::testing::ElementsAre(::testing::Pair(7, 1))) << "the higher view";
}

// Node 1 leads, and has agreed on a decision with the second process of node 0, but cannot write the file. A
// third process of node 0 then reaches all other nodes.
void lose_two_processes_of_node_zero(World& world) {
  world.pass(10);
  world.hide_file(3);
  for (const int other : {0, 1, 2, 4}) world.cut(3, other, true);
  world.kill(0, false);
  ASSERT_LT(world.pass_until([&] { return world.leader() == 1; }, 10), 10);
  world.start(0);
  const auto joined = [&] {
    const AgreedState& file = world.file;
    return file.now.chair == 1 && file.now.members.size() == 4 && file.before.members.empty();
  };
  ASSERT_LT(world.pass_until(joined, 10), 10);
  // Node 1 decides something with node 0, and cannot write it.
  world.block_file();
  for (const int other : {2, 4}) world.cut(1, other, true);
  const std::uint64_t written = world.file.version;
  world.pass_until([&] { return world.role(2) != Succession::Role::kFollowing; }, 15);
  ASSERT_GT(world.code(0).agreement().state().version, written);
  ASSERT_EQ(world.leader(), 1);
  world.cut(1, 0, true);
  world.kill(0, false);
  world.start(0);
  for (const int other : {0, 2, 4}) world.cut(3, other, false);
  // A leader of both sides could act now.
  world.pass_until([&] { return world.leader() == 0; }, 5);
  world.ease();
  world.pass(5);
}

// The third process knows that the second one has voted for node 1, although node 3 has a state in which node
// 0 led. Otherwise both leaders act.
TEST(Succession, ANewProcessOfNodeZeroTakesNoVoteOfAFollower) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    World world(5, seed);
    lose_two_processes_of_node_zero(world);
    EXPECT_THAT(world.wrong(), ::testing::IsEmpty()) << "seed " << seed;
    world.heal();
    world.pass(30);
    EXPECT_TRUE(world.all_follow(world.leader())) << "seed " << seed;
    EXPECT_THAT(world.wrong(), ::testing::IsEmpty()) << "seed " << seed;
  }
}

// The first process of node 0 leaves out nodes 3 and 4, and cannot write the file. It ends, and its next
// process reaches only those two, who still count the process before as a member.
void lose_a_leader_whose_members_are_not_written(World& world) {
  for (const int one : {0, 1, 2})
    for (const int other : {3, 4}) world.cut(one, other, true);
  const auto smaller = [&] {
    const AgreedState& state = world.code(1).agreement().state();
    return state.now.members.size() == 3 && state.before.members.empty();
  };
  world.pass_until(smaller, 20);
  world.kill(0, false);
  for (const int other : {1, 2}) world.cut(0, other, true);
  for (const int other : {3, 4}) world.cut(0, other, false);
  world.start(0);
  world.pass_until([&] { return world.role(0) == Succession::Role::kLeading; }, 10);
  world.ease();
  world.pass(10);
}

// The first process of node 0 loses its quorum and follows node 1, which cannot write the file. It ends, and
// its next process reaches node 3, which still has the state in which node 0 led.
void lose_a_leader_that_follows(World& world) {
  for (const int other : {0, 1, 2, 4}) world.cut(3, other, true);
  for (const int other : {1, 2, 4}) world.cut(0, other, true);
  world.pass_until([&] { return world.role(1) == Succession::Role::kLeading; }, 30);
  world.pass_until([&] { return world.role(0) == Succession::Role::kSeeking; }, 30);
  for (const int other : {1, 2, 4}) world.cut(0, other, false);
  const auto follows = [&] {
    const AgreedState& state = world.code(2).agreement().state();
    return world.role(0) == Succession::Role::kFollowing && state.now.members.size() == 4 &&
           state.before.members.empty();
  };
  world.pass_until(follows, 10);
  for (const int other : {2, 4}) world.cut(1, other, true);
  world.pass_until([&] { return world.role(2) == Succession::Role::kSeeking; }, 15);
  world.cut(1, 0, true);
  world.kill(0, false);
  for (const int other : {0, 2, 4}) world.cut(3, other, false);
  world.start(0);
  world.pass_until([&] { return world.role(0) == Succession::Role::kLeading; }, 10);
  world.ease();
  world.pass(10);
}

// Neither the file nor the nodes that it reaches tell the next process of node 0 what the process before had
// voted for. It takes the vote only with what that process has kept. Otherwise two leaders act.
TEST(Succession, ANewProcessOfNodeZeroKnowsItsVotes) {
  for (const auto lose : {lose_a_leader_whose_members_are_not_written, lose_a_leader_that_follows}) {
    for (unsigned seed = 0; seed < 40; ++seed) {
      World world(5, seed);
      world.pass(10);
      world.block_file();
      if (seed % 2 == 1) world.block_votes();
      lose(world);
      EXPECT_THAT(world.wrong(), ::testing::IsEmpty()) << "seed " << seed;
      world.heal();
      world.pass(40);
      EXPECT_TRUE(world.all_follow(world.leader())) << "seed " << seed;
      EXPECT_THAT(world.wrong(), ::testing::IsEmpty()) << "seed " << seed;
    }
  }
}

// PRIMUS_WORLDS: more worlds than usual.
unsigned worlds(unsigned usual) {
  const char* const text = std::getenv("PRIMUS_WORLDS");
  return text ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : usual;
}

// Injects random faults, and lets the world settle.
void injure(World& world, int faults) {
  const auto any = [&](int below) { return static_cast<int>(world.random() % static_cast<unsigned>(below)); };
  world.pass(5);
  for (int fault = 0; fault < faults; ++fault) {
    const int node = any(world.size), kind = any(6);
    // Node 0 returns with its port, so the earlier process has ended.
    if (kind == 0 && world.alive(node)) world.kill(node, any(2) == 0);
    if (kind <= 2 && !world.alive(node)) world.start(node);
    if (kind == 3) {
      for (int other = 0; other < world.size; ++other)
        if (other != node) world.cut(node, other, true);
    }
    if (kind == 4) world.cut(node, (node + 1 + any(world.size - 1)) % world.size, true);
    if (kind == 5) world.heal();
    world.pass(0.1 * any(any(3) == 0 ? 200 : 30));
  }
  world.heal();
  world.ease();
  world.pass(75);
}

// Node 0 was started again. Another job has the port of node 1, and the other nodes have ended.
TEST(Succession, ASupervisorOfAnotherJobIsPassedOver) {
  using Kind = Succession::Act::Kind;
  const std::vector<Delegate> known{{.node = 1, .life = 5, .address = "a", .port = 1},
                                    {.node = 2, .life = 6, .address = "b", .port = 2}};
  Succession zero(3, {.node = 0, .life = 7, .address = "c", .port = 3}, known, true, 0);
  int calls = 0;
  for (double now = 0; now < 10 && !zero.may_found(now); now += 0.1) {
    zero.tick(now);
    for (const Succession::Act& one : zero.acts()) {
      if (one.kind == Kind::kCall && one.to.node == 2) zero.failed(2, now, true);
      if (one.kind == Kind::kCall && one.to.node == 1) {
        ++calls;
        zero.connected(1, now);
      }
      if (one.kind == Kind::kUse) zero.stranger(now);
    }
  }
  EXPECT_TRUE(zero.may_found(10));
  EXPECT_EQ(calls, 1);
}

// Random faults: no decision is lost, and none is made by two leaders. After the faults, either one node
// leads and all follow it, or too few have remained.
TEST(Succession, NoDecisionIsLostInRandomFaults) {
  const unsigned kWorlds = worlds(150);
  int agreements = 0, leaders = 0, led = 0;
  for (unsigned seed = 0; seed < kWorlds; ++seed) {
    World world(2 + static_cast<int>(seed % 6), seed);
    injure(world, 12);
    ASSERT_THAT(world.wrong(), ::testing::IsEmpty()) << "seed " << seed;
    const int leader = world.leader();
    if (leader >= 0) {
      EXPECT_TRUE(world.all_follow(leader)) << "seed " << seed;
      ++led;
    } else {
      EXPECT_FALSE(world.could_lead()) << "seed " << seed;
    }
    agreements += world.agreements;
    leaders += world.leaders;
  }
  RecordProperty("agreements", agreements);
  RecordProperty("leaders", leaders);
  EXPECT_GT(led, static_cast<int>(kWorlds) / 2);
}

// Messages are lost, late, repeated or out of order; connections break; nodes crash between a message and its
// answer; processes are stopped; clocks jump; the job's file cannot be written.
TEST(Succession, NoDecisionIsLostInAHardWorld) {
  const unsigned kWorlds = worlds(200);
  int agreements = 0, leaders = 0, led = 0;
  for (unsigned seed = 0; seed < kWorlds; ++seed) {
    Hardships hard{.late = 0.01,
                   .reset = 0.005,
                   .crash = 0.004,
                   .stop = 0.004,
                   .jump = 0.002,
                   .no_file = 0.5,
                   .no_votes = 0.2,
                   .restart = 0.05};
    if (seed % 3 != 0) hard.lost = hard.twice = hard.overtakes = 0.03;
    if (seed % 4 == 1) hard.no_file = hard.no_votes = 0.95;
    World world(2 + static_cast<int>(seed % 6), 100000 + seed, hard);
    injure(world, 12);
    world.pass(60);
    ASSERT_THAT(world.wrong(), ::testing::IsEmpty()) << "seed " << seed;
    const int leader = world.leader();
    led += leader >= 0 ? 1 : 0;
    // A message that is lost on a connection that stays open is not sent again. TCP excludes this case.
    if (leader >= 0 && hard.lost == 0) {
      EXPECT_TRUE(world.all_follow(leader)) << "seed " << seed;
    }
    if (leader < 0 && hard.lost == 0) {
      EXPECT_FALSE(world.could_lead()) << "seed " << seed;
    }
    agreements += world.agreements;
    leaders += world.leaders;
  }
  RecordProperty("agreements", agreements);
  RecordProperty("leaders", leaders);
  EXPECT_GT(agreements, 3 * static_cast<int>(kWorlds));
  EXPECT_GT(led, static_cast<int>(kWorlds) / 3);
}

}  // namespace
}  // namespace primus::supervise
