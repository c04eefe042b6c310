// A rank's connection to the job's key-value store on rank 0: values, counters, barriers, and the news that
// the job was aborted. A thread reads what comes. Thread-safe.
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
  // Connects and proves knowledge of the token, trying until the deadline. Throws Error: nobody there, not a
  // rendezvous, wrong token, another version, WORLD_SIZE, or the reason why the job was aborted before.
  // An abort that arrives is passed to `abort`, and one made there to all ranks. `answer`: what this rank is
  // doing, for questions of others; called on the reading thread. `still_trying` is called now and then while
  // nothing listens there.
  StoreClient(const JobEnvironment& environment, Deadline deadline, std::shared_ptr<AbortState> abort,
              std::function<std::string(const std::string& group)> answer,
              const std::function<void()>& still_trying = {});
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  // Keys up to 512 bytes, values up to 1 MiB. All throw the cause when the job is aborted.
  void set(const std::string& key, const std::string& value);
  std::optional<std::string> get(const std::string& key);
  // Gives back what a value takes of the store's 256 MiB. A key that is not there is fine.
  void erase(const std::string& key);
  // The value, once it is there. Throws Error(kIo) after the deadline.
  std::string wait(const std::string& key, Deadline deadline);
  std::int64_t add(const std::string& key, std::int64_t number);
  // Returns when `world` ranks have called it with this name. A name is used once.
  void barrier(const std::string& name, Deadline deadline);
  // What every rank answers within the time; nullopt where one does not, for all where rank 0 does not.
  std::vector<std::optional<std::string>> ask(const std::string& group, std::chrono::milliseconds time);
  // This rank ends well: its end is no failure.
  void leave();

  // The address of this host on the way to rank 0.
  std::string own_address() const { return comm::own_address(socket_); }

 private:
  void introduce(Deadline deadline, const std::function<void()>& still_trying);
  void send(const std::string& frame);
  // The reply. Throws Error: the cause of an abort, or that rank 0 has not answered until the deadline.
  std::string call(std::uint64_t request, const std::string& frame, Deadline deadline = in(kSilence));
  void read();

  JobEnvironment environment_;
  std::shared_ptr<AbortState> abort_;
  std::function<std::string(const std::string&)> answer_;
  Socket socket_;
  std::mutex send_mutex_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<std::uint64_t, std::optional<std::string>> replies_;
  std::uint64_t next_request_ = 1;
  bool leaving_ = false, closed_ = false;
  std::thread reader_;
  std::shared_ptr<void> subscription_;
};

}  // namespace primus::comm
