// Simulations of the supervisors' agreement in virtual time: the code of Succession and Agreement, with
// random kills, machines that go off, cuts of the network, and returns.
#include "safe/supervise/succession.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <random>

namespace primus::supervise {
namespace {

using Role = Succession::Role;

constexpr double kTick = 0.1, kBeat = 1, kSilence = 10, kConnectTime = 1.5;

// Supervisors, their connections, and a network that can be cut. A leader appends words to the agreed text.
class World {
 public:
  World(int nodes, unsigned seed) : random(seed), nodes_(static_cast<std::size_t>(nodes)), size(nodes) {
    cut_.assign(static_cast<std::size_t>(nodes * nodes), false);
    for (int node = 0; node < nodes; ++node) start(node);
  }

  void start(int node) {
    Node& one = at(node);
    const std::uint64_t life = ++lives_;
    std::vector<Delegate> known;
    if (node != 0) known.push_back({.node = 0, .life = 0, .address = {}, .port = 1});
    one = Node{};
    one.life = life;
    one.alive = true;
    one.code = std::make_unique<Succession>(
        size, Delegate{.node = node, .life = life, .address = "a", .port = port_of(node, life)},
        std::move(known), node == 0, now);
  }
  // Others see the end of the process at once, unless its machine is off.
  void kill(int node, bool off) {
    at(node).alive = false;
    at(node).off = off;
    at(node).code.reset();
    for (Link& link : links_) {
      if (link.from == node) link.left = true;
      if (link.from == node && !link.open) link.dead = true;
      if (link.from == node || link.to == node) off ? void(link.mute = true) : end(link);
    }
  }
  void cut(int a, int b, bool is_cut) { cut_of(a, b) = cut_of(b, a) = is_cut; }
  void heal() { cut_.assign(cut_.size(), false); }
  bool alive(int node) { return at(node).alive; }
  Role role(int node) { return at(node).code->role(); }
  const Succession& code(int node) { return *at(node).code; }

  int leader() {
    for (int node = 0; node < size; ++node)
      if (alive(node) && role(node) == Role::kLeading && at(node).code->agreement().leads()) return node;
    return -1;
  }
  bool all_follow(int leader) {
    for (int node = 0; node < size; ++node) {
      if (!alive(node) || node == leader) continue;
      if (role(node) != Role::kFollowing || code(node).leader() != leader) return false;
    }
    return leader >= 0;
  }

  void pass(double seconds) {
    for (const double until = now + seconds; now < until; now += kTick) {
      deliver();
      for (int node = 0; node < size; ++node) turn(node);
      if (now >= next_beat_) beat();
    }
  }
  // Passes time until the condition holds. Returns the seconds, or `limit`.
  template <class Condition>
  double pass_until(Condition condition, double limit) {
    const double began = now;
    while (!condition() && now - began < limit) pass(kTick);
    return now - began;
  }

  // Whether the processes that live could lead: they are a quorum of the newest state.
  bool could_lead() {
    AgreedState newest;
    for (int node = 0; node < size; ++node) {
      if (alive(node) && is_newer(code(node).agreement().state(), newest))
        newest = code(node).agreement().state();
    }
    return votes(newest.now) && (newest.before.members.empty() || votes(newest.before));
  }

  double now = 0;
  std::mt19937 random;
  std::map<std::uint64_t, std::string> agreed;  // the longest agreed text of each job
  AgreedState file;                             // that all nodes share
  int agreements = 0, leaders = 0;
  std::vector<std::string> wrong;

 private:
  struct Node {
    bool alive = false, off = false, led = false;
    std::uint64_t life = 0, proposal = 0;
    std::string text = {};  // of the proposal
    double lost_at = -1, next = 0;
    std::unique_ptr<Succession> code = {};
  };
  struct Packet {
    double at;
    LeadershipMessage message;
  };
  struct Link {
    int from, to;
    bool open = false, dead = false, mute = false, hello = false, refused = false;
    bool left = false;  // by `from`
    bool used = false;  // it is the connection `out` of `from`
    double opens = 0;
    double heard_from = 0, heard_to = 0;  // by the node `to`, by the node `from`
    std::deque<Packet> there = {}, back = {};
  };

  static std::uint16_t port_of(int node, std::uint64_t life) {
    return node == 0 ? 1 : static_cast<std::uint16_t>(2 + life % 60000);
  }
  Node& at(int node) { return nodes_[static_cast<std::size_t>(node)]; }
  std::vector<bool>::reference cut_of(int a, int b) { return cut_[static_cast<std::size_t>(a * size + b)]; }
  double delay() { return std::uniform_real_distribution<double>(0.001, 0.05)(random); }
  bool votes(const Assembly& assembly) {
    std::size_t count = 0;
    bool chair = false;
    for (const Delegate& one : assembly.members) {
      const bool here = alive(one.node) && at(one.node).life == one.life;
      count += here ? 1 : 0;
      chair = chair || (here && one.node == assembly.chair);
    }
    return 2 * count > assembly.members.size() || (2 * count == assembly.members.size() && chair);
  }

  // Both sides see the end of the connection, if they live and the network is not cut.
  void end(Link& link) {
    if (link.dead) return;
    if (cut_of(link.from, link.to)) {
      link.mute = true;  // the other side waits until it finds the silence too long
      return;
    }
    link.dead = true;
    if (link.used && !link.left && alive(link.from)) at(link.from).code->disconnected(now);
    if (link.hello && alive(link.to)) at(link.to).code->left(link.from, now);
    link.hello = false;
  }
  Link* out_of(int node) {
    for (Link& link : links_)
      if (link.from == node && link.used && !link.dead && !link.left) return &link;
    return nullptr;
  }
  // The call of a node.
  Link* call_of(int node, int to) {
    for (Link& link : links_)
      if (link.from == node && link.to == to && !link.used && !link.dead && !link.left) return &link;
    return nullptr;
  }
  Link* in_of(int node, int from) {
    for (Link& link : links_)
      if (link.from == from && link.to == node && link.hello && !link.dead) return &link;
    return nullptr;
  }

  void turn(int node) {
    Node& one = at(node);
    if (!one.alive) return;
    if (one.code->role() == Role::kSeeking && file.exists()) one.code->learn(file, now);
    one.code->tick(now);
    if (one.code->may_found(now)) one.code->found(++lives_, "");
    if (one.code->role() == Role::kLost && one.lost_at < 0)
      one.lost_at = now + std::uniform_real_distribution<double>(0, 1)(random);
    if (one.code->role() == Role::kLost && now >= one.lost_at) {
      one.lost_at = -1;
      one.led = false;
      one.code->seek(now);
    }
    act(node);
    if (!one.alive) return;
    if (one.code->role() == Role::kEnded || one.code->role() == Role::kRefused) return kill(node, false);
    if (one.code->role() == Role::kLeading) lead(node);
  }

  void lead(int node) {
    Node& one = at(node);
    Agreement& agreement = one.code->agreement();
    if (!agreement.leads()) return;
    if (!one.led) {
      one.led = true;
      ++leaders;
      one.text = agreement.state().body;
      one.proposal = 0;
    }
    if (one.proposal != 0 && agreement.is_agreed(one.proposal)) {
      one.proposal = 0;
      ++agreements;
      // Node 0 begins a new job if no supervisor of the earlier one answers.
      std::string& before = agreed[agreement.state().job];
      if (!one.text.starts_with(before))
        wrong.push_back("'" + one.text + "' lacks a part of '" + before + "'");
      before = one.text;
      if (is_newer(agreement.state(), file) || agreement.state().job != file.job) file = agreement.state();
      one.next = now + std::uniform_real_distribution<double>(0, 3)(random);
    }
    if (one.proposal == 0 && now >= one.next) {
      one.text += std::to_string(node) + "." + std::to_string(++words_) + " ";
      one.proposal = agreement.propose(one.text);
    }
    one.code->tick(now);
    act(node);
  }

  void act(int node) {
    for (const Succession::Act& act : at(node).code->acts()) {
      using Kind = Succession::Act::Kind;
      Link* const link = act.kind == Kind::kCall                               ? nullptr
                         : act.kind == Kind::kForget || act.kind == Kind::kUse ? call_of(node, act.to.node)
                         : act.kind == Kind::kHangUp || act.kind == Kind::kSendOut ? out_of(node)
                                                                                   : in_of(node, act.to.node);
      if (act.kind == Kind::kCall) {
        links_.push_back({.from = node, .to = act.to.node, .opens = now + delay()});
        Link& made = links_.back();
        const Node& other = at(act.to.node);
        if (other.off || cut_of(node, act.to.node)) {
          made.mute = true;
          made.opens = now + kConnectTime;
        } else if (!other.alive || port_of(act.to.node, other.life) != act.to.port) {
          made.mute = made.refused = true;
        }
      } else if (act.kind == Kind::kUse) {
        if (link) {
          link->used = true;
        } else {
          at(node).code->disconnected(now);
        }
      } else if (!link) {
        continue;
      } else if (act.kind == Kind::kSendOut || act.kind == Kind::kSendIn) {
        auto& queue = act.kind == Kind::kSendOut ? link->there : link->back;
        queue.push_back(
            {.at = std::max(now + delay(), queue.empty() ? 0 : queue.back().at), .message = act.message});
      } else if (act.kind == Kind::kHangUp || act.kind == Kind::kForget) {
        link->left = link->mute = true;
        link->dead = !link->hello || !alive(link->to) || !cut_of(node, link->to);
        if (link->dead && link->hello && alive(link->to)) at(link->to).code->left(node, now);
      } else {
        // The messages before the end arrive.
        link->hello = false;
        closing_.push_back(link);
      }
    }
  }

  void deliver() {
    for (Link& link : links_) {
      if (link.dead) continue;
      if (!link.open && now >= link.opens) {
        if (link.mute) {
          link.dead = true;
          if (alive(link.from) && !link.left) at(link.from).code->failed(link.to, now, link.refused);
          continue;
        }
        link.open = true;
        link.heard_from = link.heard_to = now;
        at(link.from).code->connected(link.to, now);
      }
      if (!link.open || link.mute || cut_of(link.from, link.to)) continue;
      while (!link.dead && !link.there.empty() && link.there.front().at <= now && alive(link.to)) {
        const LeadershipMessage message = link.there.front().message;
        link.there.pop_front();
        if (message.kind == LeadershipMessage::Kind::kHello) {
          if (Link* const before = in_of(link.to, link.from)) {
            before->hello = false;
            before->dead = true;
            at(link.to).code->left(link.from, now);
          }
          link.hello = true;
        }
        if (link.hello) at(link.to).code->receive_in(link.from, message, now);
        act(link.to);
      }
      while (!link.dead && !link.back.empty() && link.back.front().at <= now && alive(link.from)) {
        const LeadershipMessage message = link.back.front().message;
        link.back.pop_front();
        at(link.from).code->receive(message, now);
        act(link.from);
      }
      const bool closes = std::ranges::count(closing_, &link) > 0;
      if (closes && link.back.empty() && !link.dead) end(link);
    }
    std::erase_if(closing_, [](const Link* link) { return link->dead; });
    std::erase_if(links_, [](const Link& link) { return link.dead; });
  }

  void beat() {
    next_beat_ = now + kBeat;
    for (Link& link : links_) {
      if (!link.open || link.dead) continue;
      if (!link.mute && !cut_of(link.from, link.to)) {
        link.heard_from = link.heard_to = now;
        if (alive(link.from) && link.used && !link.left) at(link.from).code->heard(now);
      } else if (link.hello && alive(link.to) && now - link.heard_from > kSilence) {
        link.hello = false;
        link.dead = link.left;
        at(link.to).code->left(link.from, now);
      }
    }
  }

  std::vector<Node> nodes_;
  std::vector<bool> cut_;
  std::list<Link> links_;
  std::vector<Link*> closing_;
  double next_beat_ = 0;
  std::uint64_t lives_ = 0, words_ = 0;

 public:
  const int size;
};

TEST(Succession, AllFollowNodeZero) {
  World world(5, 1);
  EXPECT_LT(world.pass_until([&] { return world.all_follow(0); }, 10), 3);
  world.pass(20);
  EXPECT_GT(world.agreements, 3);
  EXPECT_THAT(world.wrong, ::testing::IsEmpty());
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
    EXPECT_THAT(world.wrong, ::testing::IsEmpty());
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
    EXPECT_THAT(world.wrong, ::testing::IsEmpty());
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
  EXPECT_THAT(world.wrong, ::testing::IsEmpty());
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
  EXPECT_EQ(world.agreed.size(), 1U);
  world.kill(0, true);
  world.pass(60);
  EXPECT_FALSE(world.alive(1));
  EXPECT_THAT(world.wrong, ::testing::IsEmpty());
}

// Random faults: no decision is lost, and none is made by two leaders. After the faults, either one node
// leads and all follow it, or too few have remained.
TEST(Succession, NoDecisionIsLostInRandomFaults) {
  constexpr unsigned kWorlds = 500;
  int agreements = 0, leaders = 0, led = 0;
  for (unsigned seed = 0; seed < kWorlds; ++seed) {
    World world(2 + static_cast<int>(seed % 6), seed);
    const auto any = [&](int below) {
      return static_cast<int>(world.random() % static_cast<unsigned>(below));
    };
    world.pass(5);
    for (int fault = 0; fault < 12; ++fault) {
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
    world.pass(75);
    ASSERT_THAT(world.wrong, ::testing::IsEmpty()) << "seed " << seed;
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

}  // namespace
}  // namespace primus::supervise
