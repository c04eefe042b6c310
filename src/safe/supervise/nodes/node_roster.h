// The machines (nodes) of a job on several machines, as its leader sees them: which are connected, which hold
// a place in the job, when an attempt may start, when it is over, and which machine was lost. The class reads
// no clock, no file and no socket, so tests and simulations use it in virtual time.
//
// A job has `places` places, each with the same number of ranks. Nodes above `places` are spares: a spare
// takes the place of a lost node. If the network is known, it is the spare that shares the most switches with
// the lost node. The leader is one of the nodes, and never lost to itself.
//
// Times are seconds of a clock that does not go backwards. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "safe/supervise/recovery/attempt.h"

namespace primus::supervise {

struct RosterLimits {
  double first_wait = 600;  // for nodes before the first attempt (distributed_timeout_minutes)
  double wait = 60;         // for a lost node, or a spare, before a later attempt
  double spare_after =
      10;               // the first attempt uses a spare for a node that is this much later than the newest
  double silence = 10;  // a node without a message is lost
  double settle = 2;    // after the first end of an attempt, the other nodes have this time to end themselves
  double ending = 70;   // a node that does not report the end of its processes is lost
  double checkpoint_wait = 60;  // until all nodes see the newest checkpoint
};

// How the processes of one node ended.
struct NodeEnd {
  int exit_code = 0;
  bool memory_kill = false;
  std::string error = {};
};

class Roster {
 public:
  // `nodes`: all nodes, with spares. `places`: those that the job needs; at least 1, at most `nodes`.
  // `switches`: for each node, the switches above it, from the top to the lowest; empty: not known.
  Roster(int nodes, int places, const RosterLimits& limits, double now,
         const std::vector<std::vector<int>>& switches = {}, int leader = 0);
  // Continues the job of an earlier leader: the number and the nodes of its last attempt, which is over, and
  // the hosts of all nodes. Another attempt may start at the time `at`.
  void resume(std::uint64_t attempt, const std::vector<int>& held, const std::vector<std::string>& hosts,
              double at, double now);

  // ---- Messages to the leader, which joins itself like the others. ---------------------------------------
  void joined(int node, std::string host, double now);
  // Returns whether this ends the attempt: the node had a place.
  void lost(int node, const std::string& why, double now);
  void heard(int node, double now);
  void sees_checkpoint(int node, std::int64_t step);
  // Ignored if the attempt is not the current one.
  void ended(int node, std::uint64_t attempt, NodeEnd end, double now);
  void end_attempt() { must_end_ = true; }  // it hangs, or the user wants its end at once

  // ---- Decisions. -------------------------------------------------------------------------------------
  enum class Step : std::uint8_t {
    kNothing,
    kStart,   // call start(), and start the attempt on the nodes of places()
    kEnd,     // end the processes of the attempt; returned once per attempt
    kOver,    // all processes of the attempt have ended: cause() and lost_node() tell why; then call next()
    kGiveUp,  // nodes are missing, or do not see the checkpoint: problem() tells
  };
  Step step(double now);
  // Describes what the job waits for while no attempt runs, and when it gives up. Empty if the job waits for
  // nothing, or only for the delay of the restart.
  struct Wait {
    std::string what;  // "node 1 (h1) or a spare"
    double until;
  };
  std::optional<Wait> awaited(double now) const;
  // Nodes that were silent for too long since the last call; their connections must be closed.
  std::vector<int> take_silent();

  // Begins the attempt that step() allowed. Returns its number.
  std::uint64_t start(double now);
  // The attempt is over; another one may start at the time `at`.
  void next(double at, double now);

  int nodes() const { return static_cast<int>(nodes_.size()); }
  std::uint64_t attempt() const { return attempt_; }
  bool runs() const { return state_ == State::kRunning || state_ == State::kEnding; }
  const std::vector<int>& places() const { return places_; }  // number of the node at each place; -1: vacant
  std::optional<int> place_of(int node) const;
  bool is_here(int node) const { return nodes_[static_cast<std::size_t>(node)].here; }
  // Whether processes of the attempt may run on the node.
  bool works(int node) const { return nodes_[static_cast<std::size_t>(node)].works; }
  const std::string& host(int node) const { return nodes_[static_cast<std::size_t>(node)].host; }
  // The end that explains the attempt: that of a killed process, or else the first one.
  const NodeEnd& cause() const { return cause_; }
  int cause_node() const { return cause_node_; }
  const std::optional<LostNode>& lost_node() const { return lost_; }
  // kGiveUp: what is missing, and the next step; one sentence each.
  struct Problem {
    std::string reason, text, hint;
  };
  const Problem& problem() const { return problem_; }
  // Nodes that took a place since the last call, with the place: a spare for a lost node, or a node that
  // returned.
  struct Taken {
    int node, place;
  };
  std::vector<Taken> take_replacements();

 private:
  enum class State : std::uint8_t { kGathering, kRunning, kEnding, kOver };
  struct Node {
    bool here = false, spare = false, works = false;  // works: its processes of the attempt may run
    double heard = 0, joined = 0;
    std::int64_t checkpoint = 0;
    std::string host = {}, why = {};
    std::vector<int> switches = {};  // above the node, from the top to the lowest
  };

  Node& at(int node) { return nodes_[static_cast<std::size_t>(node)]; }
  const Node& at(int node) const { return nodes_[static_cast<std::size_t>(node)]; }
  void find_silent(double now);
  bool fill(double now);
  int nearest_spare(int lost) const;
  bool all_see_the_checkpoint() const;
  Step gather(double now);
  Step run(double now);
  double longest_wait() const { return attempt_ == 0 ? limits_.first_wait : limits_.wait; }
  std::vector<int> vacant() const;
  std::string names_of(const std::vector<int>& nodes) const;
  void missing();
  void unseen();

  int leader_;
  RosterLimits limits_;
  State state_ = State::kGathering;
  std::vector<Node> nodes_;
  std::vector<int> places_;
  std::vector<int> held_;  // the nodes of the last attempt
  std::uint64_t attempt_ = 0;
  double since_, at_ = 0, newest_joined_ = 0;  // since_: of the present state
  std::optional<double> full_ = {};            // since when all places are taken
  std::optional<double> first_end_ = {};
  bool must_end_ = false, told_ = false;
  std::vector<int> silent_ = {};
  std::vector<Taken> taken_ = {};
  NodeEnd cause_ = {};
  int cause_node_ = 0;
  std::optional<LostNode> lost_ = {};
  Problem problem_ = {};
};

}  // namespace primus::supervise
