// A rank's connection to the job's key-value store on rank 0: values, counters, barriers, and notification of
// aborts. A thread reads incoming messages. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/rank_state.h"
#include "comm/rendezvous/environment.h"
#include "comm/rendezvous/socket.h"
#include "comm/rendezvous/wire.h"

namespace primus::comm {

class StoreClient {
 public:
  // Connects and authenticates with the token, retrying until the deadline. Throws Error: no server, not a
  // rendezvous, wrong token, different version or WORLD_SIZE, or the reason if the job was already aborted.
  // Passes received aborts to `abort`, and sends aborts made through `abort` to all ranks. `answer` returns
  // this rank's status for other ranks' questions. The reading thread calls `answer`. `still_trying` is
  // called occasionally while the server does not listen yet.
  StoreClient(const JobEnvironment& environment, Deadline deadline, std::shared_ptr<AbortState> abort,
              std::function<std::string(const std::string& group)> answer,
              const std::function<void()>& still_trying = {});
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  // Keys have up to 512 bytes, values up to 1 MiB. All functions throw the cause if the job is aborted.
  void set(const std::string& key, const std::string& value);
  std::optional<std::string> get(const std::string& key);
  // Frees the value's share of the store's 256 MiB. A missing key is allowed.
  void erase(const std::string& key);
  // Waits for the key and returns its value. Throws Error(kIo) after the deadline.
  std::string wait(const std::string& key, Deadline deadline);
  std::int64_t add(const std::string& key, std::int64_t number);
  // Returns after all ranks of the job have called barrier() with this name. Each name is used only once.
  void barrier(const std::string& name, Deadline deadline);
  // Returns every rank's answer within `time`; nullopt for ranks that do not answer. If rank 0 does not
  // answer, all elements are nullopt.
  std::vector<std::optional<std::string>> ask(const std::string& group, std::chrono::milliseconds time);
  // Announces that this rank ends normally, so that its disconnection is not a failure.
  void leave();

  // Returns this host's address on the route to rank 0.
  std::string own_address() const { return comm::own_address(socket_); }

 private:
  void introduce(Deadline deadline, const std::function<void()>& still_trying);
  void send(const std::string& frame);
  // Sends a request and returns the reply. Throws Error: the cause of an abort, or a missing answer of rank
  // 0.
  std::string call(std::uint64_t request, const std::string& frame, Deadline deadline = in(kSilence));
  void read();

  JobEnvironment environment_;
  std::shared_ptr<AbortState> abort_;
  std::function<std::string(const std::string&)> answer_;
  Socket socket_;
  std::mutex send_mutex_;
  std::mutex mutex_;  // guards the fields below
  std::condition_variable changed_;
  std::map<std::uint64_t, std::optional<std::string>> replies_;
  std::uint64_t next_request_ = 1;
  bool leaving_ = false, closed_ = false;
  std::thread reader_;
  std::shared_ptr<void> subscription_;
};

}  // namespace primus::comm
