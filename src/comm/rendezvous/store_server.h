// The server of a job's key-value store: a thread in rank 0's process. It also notices when a rank is lost,
// and passes aborts and questions on to all.
//
// Peers may be hostile: who does not prove knowledge of the token within five seconds is dropped, at most 128
// such connections are open at a time, and a known peer's frames, keys, values and unread answers are
// bounded.
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
  // Sends what is still to be sent, for a second at most, and ends.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Waits until every rank has left, or the job was aborted, or the deadline. From any thread.
  void wait_until_left(Deadline deadline);
  // Connections that did not know the token, so far. From any thread.
  int strangers() const { return strangers_; }

 private:
  struct Connection {
    Socket socket;
    std::string in, out;
    std::string nonce;
    std::optional<Deadline> deadline;  // for what has begun: the introduction, or a frame
    int rank = -1;                     // known: introduced
    bool closing = false;              // after `out` has been sent
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
  // The values that ranks have set, and their sums.
  struct Stored {
    std::map<std::string, std::string> values;
    std::map<std::string, std::int64_t> sums;
    std::size_t bytes = 0;  // of both, keys included
  };

  void serve();
  void accept_new();
  void read(Connection& connection);
  void write(Connection& connection);
  // Takes an introduction, or a frame, off `in`; false when there is none whole.
  bool introduce(Connection& connection);
  bool take_frame(Connection& connection);
  void handle(Connection& connection, std::string_view body);
  // Parts of handle(): what `reader` has of the request, behind its type and number.
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

  // The thread's own.
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
  bool over_ = false;  // everybody left, or aborted
  std::thread thread_;
};

}  // namespace primus::comm
