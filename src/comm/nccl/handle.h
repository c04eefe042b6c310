// One communicator of the library, in its mode that never blocks the caller: whatever takes time is asked for
// again and again, so that a rank that waits for others notices when the job is aborted. Thread-safe: any
// thread may end it while the rank's own thread is in a call.
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

class Handle {
 public:
  // Waits for the other ranks of the group. Throws Error: they did not all come before the deadline, the
  // library failed, the job was aborted. `what`: for messages, "group 'dp' of 8 ranks".
  // `most_blocks`: of a kernel of the library, each of which takes a multiprocessor; 0: as many as it likes.
  Handle(std::shared_ptr<const Library> library, std::shared_ptr<RankState> state, std::string what,
         const UniqueId& id, int ranks, int rank, int most_blocks, Deadline deadline);
  // Waits for a moment until peers are done with what this rank has sent, and gives up then; at once while an
  // exception leaves the scope.
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  // Runs `call`, which asks the library for work, and returns when the work is on its stream. That may take
  // other ranks: `waiting` is then called again and again, with the time so far, and may throw. Throws the
  // job's abort, or Error with what the library says.
  using Waiting = FunctionRef<void(std::chrono::milliseconds waited)>;
  void run(FunctionRef<Result(Comm)> call, const Signature& what, Waiting waiting);
  // Empty, or what has gone wrong with the work under way. `remote`: another rank is the cause. Does not
  // wait: says nothing while the rank is in a call.
  std::string problem(bool& remote);
  // Ends all work under way; nothing can be started any more. A call that the rank is in gets a moment to
  // return first. One that does not is in the driver, which has no room for more work until this work ends:
  // it is ended all the same, and the rank is lost if the library does not bear that.
  void end() noexcept;

  // "unhandled cuda error: <what the library logged last>"
  std::string text_of(Result result, Comm comm) const;

 private:
  // The library's own state: kInProgress until what was asked for is done. Null handle: the job's abort.
  Result ask();
  void wait_until_ready(const std::string& doing, Waiting waiting);

  const std::shared_ptr<const Library> library_;
  const std::shared_ptr<RankState> state_;
  const std::string what_;
  const int failures_ = std::uncaught_exceptions();
  std::timed_mutex mutex_;  // held in every call with the handle
  std::atomic<Comm> comm_{nullptr};
};

}  // namespace primus::comm::nccl
