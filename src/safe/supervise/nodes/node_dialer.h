// Opens connections to other supervisors of a job. Calls run at the same time, each in a thread of its own,
// because a name may have to be looked up, and a machine that is off does not answer: the main loop never
// waits for them. succession.h limits their number.
//
// Not thread-safe.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/rendezvous/socket.h"
#include "safe/supervise/agreement/agreement.h"
#include "safe/supervise/nodes/node_link.h"

namespace primus::supervise {

class NodeDialer {
 public:
  // `node`: this one of `nodes`. Throws Error.
  NodeDialer(std::string token, int node, int nodes);
  // Waits until the last calls have given up, three seconds at most if names are looked up soon.
  ~NodeDialer();
  NodeDialer(const NodeDialer&) = delete;
  NodeDialer& operator=(const NodeDialer&) = delete;

  // A descriptor that is readable when answers() returns something.
  int fd() const { return wakes_.fd(); }
  // Begins a call; an earlier one of the same node is forgotten.
  void call(const Delegate& to);
  void forget(int node);

  struct Answer {
    int node = 0;
    bool open = false;              // take() returns the connection
    bool refused = false;           // the machine answered that no process listens
    std::exception_ptr error = {};  // the supervisor refuses this node
  };
  // Returns the calls that have opened or failed since the previous call of this function.
  std::vector<Answer> answers();
  // Returns null if the node was not called, or its connection did not open.
  std::unique_ptr<NodeClient> take(int node);

 private:
  struct Call;
  void ring(Call& call) const;
  void reap();

  std::string token_;
  int node_, nodes_;
  comm::Socket wakes_;  // an eventfd
  std::map<int, std::shared_ptr<Call>> calls_ = {};
  std::map<int, std::unique_ptr<NodeClient>> open_ = {};
  std::vector<std::shared_ptr<Call>> forgotten_ = {};
};

}  // namespace primus::supervise
