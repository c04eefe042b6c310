// The connections between the supervisors of a job on several machines: each has a server, and those that do
// not lead a client of another one's. Both sides prove that they know the job's secret, as at the rendezvous
// of the ranks (comm/rendezvous/wire.h), but with a key of their own. The main loops poll the descriptors.
//
//   server: magic, nonce              client: magic, node, nodes, nonce, code
//   server: status, code, length and text of a refusal; then frames both ways (node_message.h)
//
// A node belongs to the job, and displaces an earlier connection of its number, when its first message
// (kHello) describes the same job as the server's.
//
// On both sides, a thread sends a message of kind kBeat each second. The threads touch no file, so a node
// whose file system blocks for a while is not taken for a lost one. If the main loop is blocked for longer
// than kMaxBlocked, the thread sends nothing more.
//
// Peers may be hostile. A peer must send its first message within five seconds, and at most 128 connections
// may wait for that. Frames and unread messages have limits. The messages are not encrypted.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/rendezvous/socket.h"
#include "safe/supervise/nodes/node_message.h"

namespace primus::supervise {

// Returns the secret of an attempt's ranks, so that ranks of earlier attempts cannot join.
std::string secret_of_attempt(const std::string& token, const std::string& salt, std::uint64_t attempt);

inline constexpr double kMaxBlocked = 600;  // seconds without a look at the connections

// Calls `beat` once a second in a thread that blocks all signals, from start() until stop(), but not while
// the last call of alive() is longer ago than kMaxBlocked.
class Heart {
 public:
  ~Heart() { stop(); }
  void start(std::function<void()> beat);
  void alive();
  void stop();

 private:
  void run();

  std::function<void()> beat_;
  std::atomic<double> alive_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stops_ = false;
  std::thread thread_;
};

class NodeServer {
 public:
  // `self`: this node. `nodes`: number of nodes with this one. `shape`: the description of the job that the
  // `more` of a node's kHello must equal. Throws Error.
  NodeServer(comm::Socket listener, const std::string& token, int self, int nodes, std::string shape);
  ~NodeServer();
  NodeServer(const NodeServer&) = delete;
  NodeServer& operator=(const NodeServer&) = delete;

  // Becomes readable when serve() has work.
  int fd() const { return epoll_.fd(); }

  // Accepts, reads and writes what is ready, without waiting. Then calls message(node, message), and
  // lost(node, why) when a node's connection has ended. A second connection with the number of a node and the
  // same job replaces the first one, which gets a message of kind kQuit.
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
  // The same, after what was sent has gone.
  void dismiss(int node);
  // Sends what waits, until the deadline at most.
  void flush(comm::Deadline deadline);

 private:
  struct Connection {
    comm::Socket socket;
    std::string in, out, nonce;
    std::optional<comm::Deadline> deadline;  // of the first message
    int claims = -1;                         // number of an authenticated node
    int node = -1;                           // the same, when its first message was accepted
    bool closing = false, dead = false;
  };
  struct Heard {
    int node;
    std::optional<NodeMessage> message;  // none: the node is lost
    std::string why;
  };
  // All of these need mutex_.
  void look();
  Connection* of(int node);
  void accept_new();
  void read(Connection& connection);
  void write(Connection& connection);
  bool introduce(Connection& connection);
  bool admit(Connection& connection, const NodeMessage& hello);
  void refuse(Connection& connection, const std::string& text);
  void drop(Connection& connection, bool tell, const std::string& why);
  void want(const Connection& connection, bool writable);
  void post(Connection& connection, const NodeMessage& message);
  void beat();

  comm::Socket listener_, epoll_;
  std::string key_;
  int self_, nodes_;
  std::string shape_;
  std::mutex mutex_;  // of connections_ and heard_
  std::list<Connection> connections_;
  std::vector<Heard> heard_;
  Heart heart_;
};

class NodeClient {
 public:
  // Connects to a supervisor and authenticates, until the deadline. `check` is called between attempts, and
  // may throw. Throws Error(kIo) if there is none, and Error(kInvalid) if it refuses this node.
  NodeClient(const std::string& host, std::uint16_t port, const std::string& token, int node, int nodes,
             comm::Deadline deadline, const std::function<void()>& check);
  // Authenticates at the supervisor that listens at `host` and `port`, to which `socket` is connected.
  NodeClient(comm::Socket socket, const std::string& host, std::uint16_t port, const std::string& token,
             int node, int nodes, comm::Deadline deadline);
  ~NodeClient();
  NodeClient(const NodeClient&) = delete;
  NodeClient& operator=(const NodeClient&) = delete;

  int fd() const { return socket_.fd(); }
  bool open() const { return open_; }
  // Appends the messages that have arrived, without waiting. open() becomes false at the end of the
  // connection.
  void receive(std::vector<NodeMessage>& messages);
  // Waits up to five seconds while the leader does not read. The first message must be of kind kHello; the
  // beats begin after it.
  void send(const NodeMessage& message);

 private:
  bool introduce(const std::string& host, std::uint16_t port, const std::string& key, int node, int nodes,
                 comm::Deadline deadline);

  comm::Socket socket_;
  std::string in_;
  std::mutex mutex_;  // of sending
  std::atomic<bool> open_ = true;
  Heart heart_;
};

}  // namespace primus::supervise
