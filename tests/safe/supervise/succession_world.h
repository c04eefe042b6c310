// Supervisors, their connections and a network, in virtual time, with the code of Succession and Agreement.
// A leader appends words to the agreed text. An oracle that sees all nodes checks each promise, each state
// and each agreement against the definition of a quorum, without the code under test.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "safe/supervise/agreement/succession.h"
#include "safe/supervise/agreement_oracle.h"

namespace primus::supervise {

// Random troubles of the network and the machines, besides the faults that a test injects: the probability
// per message.
struct Hardships {
  double late = 0;       // it takes up to 15 s, longer than any time-out
  double lost = 0;       // it is lost, and the connection stays open
  double reset = 0;      // it is lost with its connection
  double twice = 0;      // it arrives twice
  double overtakes = 0;  // it overtakes those before it
  double crash = 0;      // the receiver ends after it has taken the message, before it answers
  double stop = 0;       // the receiver is stopped for up to 20 s (SIGSTOP, a suspended machine)
  double jump = 0;       // the receiver's clock goes forward by up to 20 s
  double no_file = 0;    // per write of the job's file: it fails, and the leader tries again before it acts
  double no_votes = 0;   // per vote of node 0: it cannot be kept
  double restart = 0;    // per second of a dead node: it is started again
};

class World {
 public:
  World(int nodes, unsigned seed, Hardships hardships = {});

  void start(int node);
  // Others see the end of the process at once, unless its machine is off.
  void kill(int node, bool off);
  void cut(int a, int b, bool is_cut) { cut_of(a, b) = cut_of(b, a) = is_cut; }
  void heal() { cut_.assign(cut_.size(), false); }
  void ease() { hard_ = {}; }  // no more hardships
  void block_file() { hard_.no_file = 1; }
  void block_votes() { hard_.no_votes = 1; }
  void fail_vote() { fails_vote_ = true; }  // the next vote of node 0 cannot be kept
  bool has_failed_vote() const { return !fails_vote_; }
  void hide_file(int node) { at(node).blind = true; }  // the node's process cannot read it
  bool alive(int node) const { return at(node).alive; }
  Succession::Role role(int node) const { return at(node).code->role(); }
  const Succession& code(int node) const { return *at(node).code; }

  // -1: none.
  int leader() const;
  bool all_follow(int leader) const;
  void pass(double seconds);
  // Passes time until the condition holds. Returns the seconds, or `limit`.
  template <class Condition>
  double pass_until(Condition condition, double limit) {
    const double began = now;
    while (!condition() && now - began < limit) pass(kTick);
    return now - began;
  }
  // Whether the processes that live could lead: they are a quorum of the newest state.
  bool could_lead() const;

  static constexpr double kTick = 0.1, kBeat = 1, kSilence = 10, kConnectTime = 1.5;

  double now = 0;
  std::mt19937 random;
  std::size_t jobs() const { return oracle_.jobs(); }  // in which something was agreed
  AgreedState file = {};                               // that all nodes share
  std::optional<Votes> votes = {};                     // that node 0 has kept
  int agreements = 0, leaders = 0;
  std::vector<std::string> wrong() const { return oracle_.wrong(); }

 private:
  struct Node {
    bool alive = false, off = false, led = false, blind = false;
    std::uint64_t life = 0, proposal = 0;
    std::uint16_t port = 0;
    std::string text = {};  // of the proposal
    double lost_at = -1, next = 0, stopped_until = 0, clock = 0;
    std::unique_ptr<Succession> code = {};
  };
  struct Link {
    int from, to;
    bool open = false, dead = false, mute = false, hello = false, refused = false;
    bool left = false;  // by `from`
    bool used = false;  // it is the connection `out` of `from`
    double opens = 0;
    double heard_from = 0, newest_there = 0, newest_back = 0;
    std::multimap<double, LeadershipMessage> there = {}, back = {};  // by the time of arrival
  };

  Node& at(int node) { return nodes_[static_cast<std::size_t>(node)]; }
  const Node& at(int node) const { return nodes_[static_cast<std::size_t>(node)]; }
  std::vector<bool>::reference cut_of(int a, int b) { return cut_[static_cast<std::size_t>(a * size + b)]; }
  double clock(int node) const { return now + at(node).clock; }
  double up_to(double seconds) { return std::uniform_real_distribution<double>(0, seconds)(random); }
  bool chance(double of) { return of > 0 && up_to(1) < of; }
  double delay() { return 0.001 + up_to(0.049); }
  bool is_stopped(int node) const { return now < at(node).stopped_until; }

  void end(Link& link);
  Link* out_of(int node);
  Link* call_of(int node, int to);
  Link* in_of(int node, int from);
  void turn(int node);
  void lead(int node);
  bool write(int node);
  void act(int node);
  void call(int node, const Delegate& to);
  void send(Link& link, bool there, const LeadershipMessage& message);
  void deliver();
  void arrive(Link& link, bool there, const LeadershipMessage& message);
  void suffer(int node);
  void beat();

  void watch(int node);

  std::vector<Node> nodes_;
  std::vector<bool> cut_;
  std::list<Link> links_ = {};
  std::vector<Link*> closing_ = {};
  double next_beat_ = 0;
  bool fails_vote_ = false;
  std::uint64_t lives_ = 0, words_ = 0;
  Hardships hard_;
  AgreementOracle oracle_ = {};

 public:
  const int size;
};

}  // namespace primus::supervise
