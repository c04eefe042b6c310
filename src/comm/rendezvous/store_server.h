// The server of a job's key-value store: a thread in rank 0's process. It also detects lost ranks and
// forwards aborts and questions to all ranks.
//
// Peers may be hostile. A peer must authenticate with the token within five seconds. At most 128
// unauthenticated connections may be open at a time. The frames, keys, values and unread answers of
// authenticated peers have size limits.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/rendezvous/socket.h"
#include "comm/rendezvous/wire.h"

namespace primus::comm {

class StoreServer {
 public:
  StoreServer(Socket listener, std::string token, int world);
  // Sends pending data for at most a second, then ends.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Waits until every rank has left, the job was aborted, or the deadline has passed. Callable from any
  // thread.
  void wait_until_left(Deadline deadline);
  // Returns the number of connections that failed to authenticate. Callable from any thread.
  int strangers() const { return strangers_; }

 private:
  struct Connection {
    Socket socket;
    std::string in, out;
    std::string nonce;
    std::optional<Deadline> deadline;  // limit for the introduction or the current frame
    int rank = -1;                     // -1 until introduced
    bool closing = false;              // close after `out` has been sent
    bool dead = false;
  };
  struct Waiting {
    Connection* connection;
    std::uint64_t request;
    std::string key;
    Deadline deadline;
  };
  struct Question {
    Connection* connection;
    std::uint64_t request;
    std::map<int, std::string> answers;
    std::size_t asked;
    Deadline deadline;
  };
  // Values set by ranks, and sums of add().
  struct Stored {
    std::map<std::string, std::string> values;
    std::map<std::string, std::int64_t> sums;
    std::size_t bytes = 0;  // total size, including keys
  };

  void serve();
  void accept_new();
  void read(Connection& connection);
  void write(Connection& connection);
  // These functions remove a complete introduction or frame from `in`. They return false if the introduction
  // or frame is incomplete.
  bool introduce(Connection& connection);
  bool read_frame(Connection& connection);
  void handle(Connection& connection, std::string_view body);
  // Each of these functions handles one type of request. `reader`: the request after its type and number.
  void set(Connection& connection, std::uint64_t request, wire::Reader& reader);
  void add(Connection& connection, std::uint64_t request, wire::Reader& reader);
  void ask(Connection& connection, std::uint64_t request, wire::Reader& reader);
  void leave(const Connection& connection);
  void refuse(Connection& connection, wire::Verdict verdict, const std::string& text);
  void drop(Connection& connection);
  void answer_question(std::uint64_t number, Connection& connection, std::string text);
  void end_question(std::uint64_t number);
  void finish_waiting();
  void abort(const std::string& reason, ErrorKind kind = ErrorKind::kIo);
  void post(Connection& connection, std::string frame);

  Socket listener_, waker_;
  const std::string token_;
  const int world_;

  // Used only by the server's thread.
  std::list<Connection> connections_;
  Stored stored_;
  std::list<Waiting> waiting_;
  std::map<std::uint64_t, Question> questions_;
  std::uint64_t next_question_ = 1;
  std::vector<bool> seen_, left_;
  int left_count_ = 0;
  std::optional<std::string> aborted_;

  std::atomic<bool> stop_{false};
  std::atomic<int> strangers_{0};
  std::mutex over_mutex_;
  std::condition_variable over_changed_;
  bool over_ = false;  // all ranks left, or the job was aborted
  std::thread thread_;
};

}  // namespace primus::comm
