// The connections and the leadership of one supervisor of a job on several machines: its server, its
// connection to the leader, and its Succession (succession.h). Also keeps the job's files
// (agreement_files.h). A supervisor that starts later finds the leader there. The files hold no secret.
//
// Not thread-safe. Use it in the program's main thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "safe/supervise/agreement/succession.h"
#include "safe/supervise/nodes/agreement_files.h"
#include "safe/supervise/nodes/node_dialer.h"
#include "safe/supervise/nodes/node_link.h"
#include "safe/supervise/nodes/node_supervisor.h"
#include "safe/supervise/observation/wait_notice.h"
#include "safe/supervise/supervisor.h"

namespace primus::supervise {

class NodeHub {
 public:
  // Node 0 listens at the job's address and port, every other node at a free port. Throws Error.
  NodeHub(const SupervisedJob& job, const SupervisedNodes& nodes);
  NodeHub(const NodeHub&) = delete;
  NodeHub& operator=(const NodeHub&) = delete;

  const Delegate& self() const { return succession_->agreement().self(); }
  Succession& succession() { return *succession_; }
  Succession::Role role() const { return succession_->role(); }

  // Descriptors for poll(); -1: none.
  int server_fd() const { return server_->fd(); }
  int leader_fd() const { return client_ ? client_->fd() : -1; }
  int calls_fd() const { return dialer_.fd(); }

  // Handles what has arrived and what is due. `step`: of the newest checkpoint, for the first message to
  // another supervisor. Messages that are not about leadership go to the handlers.
  struct Handlers {
    std::function<void(const NodeMessage&)> from_leader = {};
    std::function<void(int, const NodeMessage&)> message =
        {};  // of a node that follows; kHello: it has joined
    std::function<void(int, const std::string&)> lost = {};
  };
  void turn(const Handlers& handlers);

  void send_to_leader(const NodeMessage& message);
  void send(int node, const NodeMessage& message) { server_->send(node, message); }
  void send_all(const NodeMessage& message) { server_->send_all(message); }
  void flush(comm::Deadline deadline) { server_->flush(deadline); }
  // A node that leads closes a connection.
  void close(int node);
  // Ends the connection to the leader, who then knows at once.
  void leave();
  // The nodes that have joined this one, with their first messages.
  const std::map<int, NodeMessage>& joined() const { return joined_; }
  // Where a node that has joined listens; empty: unknown.
  std::string joined_address(int node) const;
  // Writes the agreed state, if it has changed. Only for the leader. Returns whether the file has it, or the
  // run has no folder yet. Nothing that the state decides may be done before: supervisors that start later
  // find the leader in the file. An error that lasts is shown to the user.
  bool write_file();
  // At the end of the job.
  void remove_files() const { files_.remove(); }
  // Whether another leader has written the file since this node had its state.
  bool is_replaced();

 private:
  void act();
  void act(const Succession::Act& one);
  void hear_calls();
  void read_file(double now);
  void serve(const Handlers& handlers);
  void receive(const Handlers& handlers);
  bool is_first_call() const;
  void tell_wait(double now);

  const SupervisedJob& job_;
  const SupervisedNodes& nodes_;
  AgreementFiles files_;
  std::optional<NodeServer> server_ = {};
  NodeDialer dialer_;
  std::unique_ptr<NodeClient> client_ = {};
  std::optional<Succession> succession_ = {};
  std::map<int, NodeMessage> joined_ = {};
  double next_read_ = 0;
  WaitNotice notice_;
};

}  // namespace primus::supervise
