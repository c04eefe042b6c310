// State shared by the communicators of one rank: whether the job was aborted, the flight recorder, timeouts,
// and a function that requests other ranks' status. Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/flight_recorder.h"

namespace primus::comm {

// Whether the job's communication was aborted, and why. The first reason is kept. Shared by all ranks of a
// process.
class AbortState {
 public:
  AbortState();
  // Returns false if the job was already aborted. The first call runs the listeners in the calling thread.
  bool abort(const std::string& reason, ErrorKind kind = ErrorKind::kIo) noexcept;
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  std::string reason() const;
  // If aborted, throws an Error with the first reason and its kind.
  void check() const {
    if (aborted()) throw_reason();
  }
  // Registers a listener that is called once with the reason and kind: at the abort, or immediately if the
  // job was already aborted. The listener must not throw. Destroying the returned object unsubscribes the
  // listener.
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

// Work of a rank outside its collectives that may take longer than a step, such as reading data or saving.
// Ranks that wait for this rank request its status and extend their timeout. Thread-safe.
class Activities {
 public:
  struct Oldest {
    std::string what;  // "saving a checkpoint"
    double seconds = 0;
  };
  std::uint64_t begin(std::string what);
  void end(std::uint64_t id);
  // Returns the activity that has run for the longest time; nullopt: there is none.
  std::optional<Oldest> oldest() const;

 private:
  struct Entry {
    std::string what;
    std::chrono::steady_clock::time_point began;
  };
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Entry> entries_;  // ordered by start
  std::uint64_t next_ = 1;
};

// Registers an activity for the lifetime of this object. `activities` must outlive this object; null: no
// effect.
class Activity {
 public:
  Activity(Activities* activities, std::string what)
      : activities_(activities), id_(activities ? activities->begin(std::move(what)) : 0) {}
  ~Activity() {
    if (activities_) activities_->end(id_);
  }
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

 private:
  Activities* activities_;
  std::uint64_t id_;
};

// The status a rank reports to another rank that waits for it.
struct RankStatus {
  std::uint64_t sequence = 0;  // number of the rank's last collective in the requested group; 0: none
  std::string last;            // description of that collective
  double seconds = 0;          // seconds since that collective began
  std::string running;         // description of the rank's current collective, in any group; empty: none
  int waiting_for = -1;        // rank in the job that this collective waits for, or -1
  std::string activity;        // the rank's oldest activity; empty: none
  double activity_seconds = 0;

  std::string encode() const;
  // Returns nullopt if the text is not a valid status.
  static std::optional<RankStatus> decode(const std::string& text);
};

struct RankState {
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(10);

  int rank = 0, world = 1;  // rank and number of ranks in the job
  std::shared_ptr<AbortState> abort = std::make_shared<AbortState>();
  FlightRecorder recorder;
  // How long this rank waits: for a missing rank, and for a rank that is busy with an activity.
  std::atomic<std::chrono::milliseconds> timeout{kDefaultTimeout}, activity_timeout{kDefaultTimeout};
  Activities activities;
  // Called occasionally, from any thread, with a text that names the busy rank for which this rank waits.
  // Null: disabled.
  std::function<void(const std::string& text)> notice;
  // While this rank waits for a rank that is busy with an activity: the time before which no rank is reported
  // as missing.
  std::atomic<std::chrono::steady_clock::time_point> excused_until{{}};
  // Returns the status of every rank of the job; nullopt for ranks that do not answer. A null function means
  // that ranks cannot be asked.
  std::function<std::vector<std::optional<RankStatus>>(const std::string& group)> ask_all;
};

RankStatus status_of(const RankState& state, const std::string& group);

// Follows the chains of waiting ranks from `suspects` to their ends. Returns true if all ranks at these ends
// are busy with an activity that is younger than activity_timeout. In that case, also calls `notice` and sets
// excused_until. Then no rank is reported missing for another timeout. `suspects` and `statuses` as in
// diagnose().
bool excused(RankState& state, std::span<const int> suspects,
             const std::vector<std::optional<RankStatus>>& statuses);

// Returns a text that explains why the collective `mine` does not finish. The text names the missing ranks
// and their current work. `suspects`: ranks in the job that `mine` waits for; `statuses`: by rank in the job,
// possibly empty.
std::string diagnose(const FlightRecorder::Record& mine, std::chrono::milliseconds waited,
                     std::span<const int> suspects, const std::vector<std::optional<RankStatus>>& statuses);

// Returns how long to wait for a missing rank before the job is aborted: at least ten seconds, so that a slow
// step does not count as a failure.
inline std::chrono::milliseconds watchdog_timeout(std::chrono::milliseconds wanted) {
  return std::max<std::chrono::milliseconds>(wanted, std::chrono::seconds(10));
}

}  // namespace primus::comm
