// The part of a job that runs on one node: its ranks, as children of the node's supervisor. The supervisors
// of all nodes, the leader included, use this class.
//
// Not thread-safe. Use it in the program's main thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/socket.h"
#include "launch/ranks/signals.h"
#include "lm/events/event_log.h"
#include "safe/supervise/nodes/job_processes.h"
#include "safe/supervise/nodes/node_message.h"
#include "safe/supervise/nodes/node_supervisor.h"
#include "safe/supervise/observation/event_tail.h"
#include "safe/supervise/supervisor.h"

namespace primus::supervise {

class NodeJob {
 public:
  NodeJob(const SupervisedJob& job, const SupervisedNodes& nodes, const sigset_t& mask);

  // Starts the ranks of an attempt as `message` (kStart) says. `listener`: the socket of the ranks'
  // rendezvous, which the first node's ranks inherit; else an invalid socket. Throws Error.
  void start(const NodeMessage& message, const comm::Socket& listener);
  bool runs() const { return attempt_.has_value(); }
  std::optional<std::uint64_t> attempt() const { return attempt_; }
  int place() const { return place_; }
  // Ends the ranks of a node that has lost its leader, without a report.
  void abandon();
  int ended_fd() const { return processes_.ended_fd(); }

  // Passes a signal on. Returns whether it asks to stop.
  bool pass_on(int signal, double now);
  // The first signal that asked to stop. It is remembered, so that another leader can be told.
  std::optional<int> asked() const { return asked_; }
  bool asked_again() const { return kill_at_.has_value(); }
  // A second request to stop has waited long enough: end the processes.
  bool must_end(double now) const { return kill_at_ && now >= *kill_at_; }

  // Calls event(line, rank) for each new event of this node's ranks.
  void read_events(const std::function<void(const EventLine&, int)>& event);
  JobSample sample(double now) { return processes_.sample(now); }
  void reap() { processes_.reap(); }
  // Names the processes of an ended attempt that could not be ended, in one sentence; empty: there are none.
  std::string left();
  // Ends the processes, first writing their stacks if wanted, and returns the message kEnded, or kStuck if
  // processes remain.
  NodeMessage end(bool stacks, const std::string& why,
                  const std::function<void(const EventLine&, int)>& event);

 private:
  std::string write_stacks(const std::string& why);

  const SupervisedJob& job_;
  const SupervisedNodes& nodes_;
  JobProcesses processes_;
  std::optional<EventTail> tail_ = {};
  std::optional<std::uint64_t> attempt_ = {};
  int place_ = 0;
  double began_at_ = 0;  // seconds since 1970
  std::optional<int> asked_ = {};
  std::optional<double> asked_at_ = {}, kill_at_ = {};
  std::optional<std::int64_t> kills_ = {};
  bool remains_ = false;
};

}  // namespace primus::supervise
