// The connections between the supervisors of a job on several machines: the leader's server and the other
// nodes' client. Both sides prove that they know the job's secret, as at the rendezvous of the ranks
// (comm/rendezvous/wire.h), but with a key of their own. No thread; the main loops poll the descriptors.
//
//   server: magic, nonce              client: magic, node, nodes, nonce, code
//   server: status, code, length and text of a refusal; then frames both ways (node_message.h)
//
// Peers may be hostile. A peer must authenticate within five seconds, and at most 128 connections may wait
// for that. Frames and unread messages have limits. The messages are not encrypted.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/socket.h"
#include "safe/supervise/node_message.h"

namespace primus::supervise {

// Returns the secret of an attempt's ranks, so that ranks of earlier attempts cannot join.
std::string secret_of_attempt(const std::string& token, const std::string& salt, std::uint64_t attempt);

class NodeServer {
 public:
  // `nodes`: number of nodes with the leader. Throws Error.
  NodeServer(comm::Socket listener, const std::string& token, int nodes);
  ~NodeServer();
  NodeServer(const NodeServer&) = delete;
  NodeServer& operator=(const NodeServer&) = delete;

  // Becomes readable when serve() has work.
  int fd() const { return epoll_.fd(); }

  // Accepts, reads and writes what is ready, without waiting. Calls message(node, message), and lost(node,
  // why) when a node's connection has ended. A second connection with the number of a node replaces the first
  // one, which gets a message of kind kQuit.
  struct Handler {
    std::function<void(int, const NodeMessage&)> message;
    std::function<void(int, const std::string&)> lost;
  };
  void serve(const Handler& handler);
  // Sends to a node; does nothing if it is not connected.
  void send(int node, const NodeMessage& message);
  void send_all(const NodeMessage& message);
  // Closes the connection, without a call of lost().
  void close(int node);
  // Sends what waits, until the deadline at most.
  void flush(comm::Deadline deadline);

 private:
  struct Connection {
    comm::Socket socket;
    std::string in, out, nonce;
    std::optional<comm::Deadline> deadline;  // of the introduction
    int node = -1;                           // -1: not introduced
    bool closing = false, dead = false;
  };
  Connection* of(int node);
  void accept_new();
  void read(Connection& connection, const Handler& handler);
  void write(Connection& connection);
  bool introduce(Connection& connection);
  void refuse(Connection& connection, const std::string& text);
  void drop(Connection& connection, const Handler* handler, const std::string& why);
  void want(const Connection& connection, bool writable);

  comm::Socket listener_, epoll_;
  std::string key_;
  int nodes_;
  std::list<Connection> connections_;
};

class NodeClient {
 public:
  // Connects to the leader and authenticates, until the deadline. `check` is called between attempts, and may
  // throw. Throws Error(kIo) if there is no leader, and Error(kInvalid) if it refuses this node.
  NodeClient(const std::string& host, std::uint16_t port, const std::string& token, int node, int nodes,
             comm::Deadline deadline, const std::function<void()>& check);

  int fd() const { return socket_.fd(); }
  bool open() const { return open_; }
  // Appends the messages that have arrived, without waiting. open() becomes false at the end of the
  // connection.
  void receive(std::vector<NodeMessage>& messages);
  // Waits up to five seconds while the leader does not read.
  void send(const NodeMessage& message);

 private:
  bool introduce(const std::string& host, std::uint16_t port, const std::string& key, int node, int nodes);

  comm::Socket socket_;
  std::string in_;
  bool open_ = true;
};

}  // namespace primus::supervise
