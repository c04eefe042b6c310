// One communicator of the library in non-blocking mode. Long operations are polled, so that an abort of the
// job also ends a waiting rank. Thread-safe: any thread may end the communicator while the rank's own thread
// is in a call.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

#include "base/system/thread_pool.h"
#include "comm/nccl/library.h"
#include "comm/rank_state.h"
#include "comm/rendezvous/socket.h"

namespace primus::comm::nccl {

// Time in which the rendezvous detects a lost rank. The library may notice the loss first, but cannot name
// the rank.
inline constexpr std::chrono::milliseconds kCauseDelay{1000};

class Handle {
 public:
  // Waits for the other ranks of the group. Throws Error if the other ranks are late, the library failed, or
  // the job was aborted. `what`: for messages, "group 'dp' of 8 ranks". `max_blocks`: maximum blocks of a
  // library kernel, each of which occupies a multiprocessor; 0: the library's default.
  Handle(std::shared_ptr<const Library> library, std::shared_ptr<RankState> state, std::string what,
         const UniqueId& id, int ranks, int rank, int max_blocks, Deadline deadline);
  // Waits briefly until peers have received this rank's data, except during stack unwinding.
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  // Runs `call`, which starts work in the library. Returns when the work is on its stream. The start may need
  // other ranks: during the wait, `waiting` is called repeatedly with the elapsed time. `waiting` may throw.
  // Throws the Error of the job's abort, or an Error with the library's message.
  using Waiting = FunctionRef<void(std::chrono::milliseconds waited)>;
  void run(FunctionRef<Result(Comm)> call, const Signature& what, Waiting waiting);
  // Returns the failure of work in progress, or "". `remote`: whether another rank caused the failure. Does
  // not block: returns "" while the rank is in a call.
  std::string problem(bool& remote);
  // Ends all work in progress, and prevents new work. A call in progress first gets some time to return. A
  // call that does not return is stuck in the driver, whose queue is full until the pending work ends. In
  // that case, the communicator is aborted during the call. A library without support for such an abort may
  // crash or block this rank.
  void end() noexcept;

  // Returns "unhandled cuda error: <the library's last log message>".
  std::string text_of(Result result, Comm comm) const;

 private:
  // Returns the library's state: kInProgress until the requested operation is done. Throws Error if the
  // communicator was ended.
  Result ask();
  void wait_until_ready(const std::string& doing, Waiting waiting);
  // If another rank may have caused this failure, gives the rendezvous time to detect a lost rank
  // (kCauseDelay). Throws the Error of the job's abort, which names that rank.
  void wait_for_cause(Result result) const;

  const std::shared_ptr<const Library> library_;
  const std::shared_ptr<RankState> state_;
  const std::string what_;
  const int failures_ = std::uncaught_exceptions();
  std::timed_mutex mutex_;  // held during every call that uses the communicator
  std::atomic<Comm> comm_{nullptr};
};

}  // namespace primus::comm::nccl
