// What the communicators of one rank have in common: whether the job was aborted, the flight recorder, how
// long to wait, and how to ask the other ranks what they are doing. Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/flight_recorder.h"

namespace primus::comm {

// Whether the job's communication was aborted, and why. The first reason stays. Shared by all ranks of a
// process.
class AbortState {
 public:
  AbortState();
  // False when the job was aborted before. The first call runs the listeners, in the calling thread.
  bool abort(const std::string& reason, ErrorKind kind = ErrorKind::kIo) noexcept;
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  std::string reason() const;
  // Throws an Error of the first reason and its kind when aborted.
  void check() const {
    if (aborted()) throw_reason();
  }
  // Called once with the reason and kind, at the abort, or now if that has been; must not throw. The returned
  // object ends the subscription; once it is gone the listener does not run any more.
  using Listener = std::function<void(const std::string& reason, ErrorKind kind)>;
  std::shared_ptr<void> subscribe(Listener listener);

 private:
  [[noreturn]] void throw_reason() const;

  struct Listeners;
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  std::string reason_;
  ErrorKind kind_ = ErrorKind::kIo;
  const std::shared_ptr<Listeners> listeners_;
};

// What a rank is doing, as far as another one needs it to explain why it waits.
struct RankStatus {
  std::uint64_t sequence = 0;  // of the last collective that it began in the group asked for; 0: none
  std::string last;            // that one, in words
  double seconds = 0;          // since it began
  std::string running;         // what it is in now, in any group, in words; empty: nothing
  int waiting_for = -1;        // the rank of the job that it waits for in there, or -1

  std::string encode() const;
  // Nullopt when the text is no status.
  static std::optional<RankStatus> decode(const std::string& text);
};

RankStatus status_of(const FlightRecorder& recorder, const std::string& group);

struct RankState {
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(10);

  int rank = 0, world = 1;  // in the job
  std::shared_ptr<AbortState> abort = std::make_shared<AbortState>();
  FlightRecorder recorder;
  std::atomic<std::chrono::milliseconds> timeout{kDefaultTimeout};
  // The status of every rank of the job, nullopt where one does not answer. Null: nobody can be asked.
  std::function<std::vector<std::optional<RankStatus>>(const std::string& group)> ask_all;
};

// Why `mine` does not go on: names the ranks that are missing, and what they do instead. `suspects`: the
// ranks of the job that `mine` waits for; `statuses`: by rank of the job, possibly empty.
std::string diagnose(const FlightRecorder::Record& mine, std::chrono::milliseconds waited,
                     std::span<const int> suspects, const std::vector<std::optional<RankStatus>>& statuses);

// What one waits for a missing rank before the job is aborted: at least ten seconds, so that a slow step is
// no failure.
inline std::chrono::milliseconds watchdog_timeout(std::chrono::milliseconds wanted) {
  return std::max<std::chrono::milliseconds>(wanted, std::chrono::seconds(10));
}

}  // namespace primus::comm
