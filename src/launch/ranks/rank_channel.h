// Restarts of single ranks ("rank restart"): the messages between a supervisor, its launcher (local_launch.h)
// and the launcher's ranks.
//
// After the loss of a rank, the other ranks destroy their models and connections, but their processes
// continue. The launcher starts a new process for the lost rank. Each rank reports kReady, the launcher
// reports the loss to the supervisor, and the supervisor decides. Then either all ranks connect again, with a
// new port and a new secret, or the job ends as without rank restarts.
//
// A channel is one end of a local socket that keeps messages apart. The other end is inherited by a child
// process, which finds its number in a variable. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/rendezvous/environment.h"
#include "comm/rendezvous/socket.h"

namespace primus::launch {

// Variables with the number of a launcher's channel to its supervisor, of a rank's channel to its launcher,
// and the variable of a process that replaces a lost rank: it waits before its first rendezvous.
inline constexpr const char* kSupervisorChannel = "PRIMUS_SUPERVISOR_FD";
inline constexpr const char* kRankChannel = "PRIMUS_RANK_FD";
inline constexpr const char* kReplacesVariable = "PRIMUS_RANK_REPLACES";

class Channel {
 public:
  Channel() = default;
  explicit Channel(comm::Socket socket) : socket_(std::move(socket)) {}
  // Returns both ends. Children inherit neither, unless pass_on() says so. Throws Error.
  static std::pair<Channel, Channel> pair();
  // Takes over the channel that this process has inherited, and removes its variable, so that no child finds
  // it. Returns an invalid channel if the variable is not set or names no socket. Call it before other
  // threads exist.
  static Channel inherited(const char* variable);

  bool valid() const { return socket_.valid(); }
  int fd() const { return socket_.fd(); }
  void close() { socket_.close(); }
  // Lets children inherit this end. Makes one system call.
  void pass_on() const;
  // Never waits. Returns whether the message was handed over. Closes the channel if the other end is closed.
  bool send(const std::string& message);
  // Returns the next message; nullopt: none has arrived, or the channel has been closed (valid() is false).
  std::optional<std::string> receive();

 private:
  comm::Socket socket_;
};

// The launcher's message to the supervisor.
struct LossReport {
  int rank = 0;                    // that was lost first
  int exit_code = 0;               // 128 + N: signal N killed it
  std::string text = {};           // "rank 3 was killed by signal 9 (Killed)"
  std::vector<int> replaced = {};  // ranks whose processes are new, in order
};
std::string to_text(const LossReport& report);
std::optional<LossReport> loss_report_of(const std::string& text);  // nullopt: not such a message

// The supervisor's answer to the launcher, which passes it on to the ranks. Absent in a message: the ranks
// end.
struct JoinOrder {
  double seconds = 0;      // since the supervisor started the job for the first time
  std::uint16_t port = 0;  // where rank 0 listens
  std::string token = {};  // secret of the new start
};
std::string to_text(const std::optional<JoinOrder>& order);
std::optional<JoinOrder> join_order_of(const std::string& text);

// A rank's report that it has left the lost start: the port on which rank 0 listens for the new one; 0 from
// other ranks.
std::string ready_text(std::uint16_t port);
std::optional<std::uint16_t> ready_port_of(const std::string& text);  // nullopt: not such a message

// The rank's side.
class RejoiningRank {
 public:
  // Takes over this process's channel. Call it before other threads exist.
  RejoiningRank();

  // Returns whether the launcher restarts single ranks.
  bool possible() const { return channel_.valid(); }
  // Returns whether this process replaces a lost one, and must join() before its first rendezvous.
  bool replaces() const { return replaces_; }
  // Reports that this rank is ready, and waits for the new start. Sets port, secret and listening socket of
  // `place`. Returns nullopt if there is no new start: this rank ends. Throws Error if rank 0 cannot listen.
  std::optional<JoinOrder> join(comm::JobEnvironment& place);

 private:
  Channel channel_;
  bool replaces_ = false;
};

}  // namespace primus::launch
