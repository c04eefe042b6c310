#include "comm/nccl/handle.h"

#include <fmt/format.h>

#include <exception>
#include <thread>
#include <utility>

namespace primus::comm::nccl {
namespace {

using namespace std::chrono_literals;

// Time limit for peers to finish the last work of a leaving rank.
constexpr auto kFarewell = 5s;
// How long a call may take to return before its communicator is aborted.
constexpr auto kPatience = 2s;

// Returns whether another rank may have caused the failure, for example because its process ended.
bool may_be_remote(Result result) { return result == Result::kRemoteError || result == Result::kSystemError; }

Error library_error(const Library& library, const std::string& what) {
  return {ErrorKind::kIo, what,
          fmt::format("set NCCL_DEBUG=WARN on every rank to see the messages of {}", library.name)};
}

// Waits between two polls. The first waits only yield, because library calls usually take microseconds; later
// waits sleep.
class Patience {
 public:
  void wait() {
    if (++tries_ < 200) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(tries_ < 2000 ? 50us : 2ms);
    }
  }

 private:
  int tries_ = 0;
};

}  // namespace

Handle::Handle(std::shared_ptr<const Library> library, std::shared_ptr<RankState> state, std::string what,
               const UniqueId& id, int ranks, int rank, int max_blocks, Deadline deadline)
    : library_(std::move(library)), state_(std::move(state)), what_(std::move(what)) {
  Config config;
  config.blocking = 0;
  if (max_blocks > 0) config.max_ctas = max_blocks;
  Comm comm = nullptr;
  const Result result = library_->init_rank_config(&comm, ranks, id, rank, &config);
  if (result != Result::kSuccess && result != Result::kInProgress) {
    if (comm) library_->abort(comm);
    throw library_error(
        *library_, fmt::format("{} cannot make {}: {}", library_->name, what_, text_of(result, nullptr)));
  }
  comm_ = comm;
  try {
    wait_until_ready("make " + what_, [&](std::chrono::milliseconds waited) {
      if (std::chrono::steady_clock::now() < deadline) return;
      throw Error(ErrorKind::kIo,
                  fmt::format("{} could not create {} within {:.1f} s: some ranks did not join",
                              library_->name, what_, std::chrono::duration<double>(waited).count()),
                  "look at the logs of the other ranks");
    });
  } catch (...) {
    end();
    throw;
  }
}

Handle::~Handle() {
  if (std::uncaught_exceptions() > failures_) {
    end();  // during an exception: do not wait for peers
    return;
  }
  try {
    {
      const std::lock_guard lock(mutex_);
      if (!comm_) return;
      const Result result = library_->finalize(comm_);
      if (result != Result::kSuccess && result != Result::kInProgress) throw library_error(*library_, what_);
    }
    wait_until_ready("leave " + what_, [&](std::chrono::milliseconds waited) {
      if (waited > kFarewell) throw Error(ErrorKind::kIo, what_);
    });
    const std::lock_guard lock(mutex_);
    if (const Comm comm = comm_.exchange(nullptr)) library_->destroy(comm);
  } catch (const std::exception&) {
    end();  // a peer did not finish in time; the failed rank reports the cause
  }
}

std::string Handle::text_of(Result result, Comm comm) const {
  std::string text = library_->error_string(result);
  const char* const last = library_->last_error(comm);
  if (last && *last) text += std::string(" (") + last + ")";
  return text;
}

Result Handle::ask() {
  const std::lock_guard lock(mutex_);
  if (!comm_) {
    state_->abort->check();
    throw Error(ErrorKind::kIo, fmt::format("{} was ended", what_));
  }
  Result state = Result::kSuccess;
  const Result result = library_->async_error(comm_, &state);
  return result == Result::kSuccess ? state : result;
}

void Handle::wait_until_ready(const std::string& doing, Waiting waiting) {
  const auto begin = std::chrono::steady_clock::now();
  for (Patience patience;; patience.wait()) {
    state_->abort->check();
    const Result result = ask();
    if (result == Result::kSuccess) return;
    if (result != Result::kInProgress) {
      wait_for_cause(result);
      const std::lock_guard lock(mutex_);
      throw library_error(*library_,
                          fmt::format("{} cannot {}: {}", library_->name, doing, text_of(result, comm_)));
    }
    waiting(std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin));
  }
}

void Handle::wait_for_cause(Result result) const {
  if (!may_be_remote(result)) return;
  for (auto waited = 0ms; waited < kCauseDelay; waited += 5ms) {
    state_->abort->check();
    std::this_thread::sleep_for(5ms);
  }
}

void Handle::run(FunctionRef<Result(Comm)> call, const Signature& what, Waiting waiting) {
  Result result = Result::kSuccess;
  std::string problem;
  {
    const std::lock_guard lock(mutex_);
    if (!comm_) {
      state_->abort->check();
      throw Error(ErrorKind::kIo, fmt::format("{} was ended", what_));
    }
    result = call(comm_);
    if (result != Result::kSuccess && result != Result::kInProgress) {
      problem = fmt::format("{} cannot start {} in {}: {}", library_->name, what.to_string(), what_,
                            text_of(result, comm_));
    }
  }
  if (!problem.empty()) {
    wait_for_cause(result);
    throw library_error(*library_, problem);
  }
  // The first calls of each kind also connect to peers.
  if (result == Result::kInProgress) wait_until_ready("start " + what.to_string() + " in " + what_, waiting);
}

std::string Handle::problem(bool& remote) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !comm_) return {};
  Result state = Result::kSuccess;
  const Result asked = library_->async_error(comm_, &state);
  const Result result = asked == Result::kSuccess ? state : asked;
  if (result == Result::kSuccess || result == Result::kInProgress) return {};
  remote = may_be_remote(result);
  return text_of(result, comm_);
}

void Handle::end() noexcept {
  const std::unique_lock lock(mutex_, kPatience);
  if (const Comm comm = comm_.exchange(nullptr)) library_->abort(comm);
}

}  // namespace primus::comm::nccl
