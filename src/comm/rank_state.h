// What the communicators of one rank have in common: whether the job was aborted, the flight recorder, how
// long to wait, and how to ask the other ranks what they are doing. Thread-safe.
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

// What a rank does outside its collectives and may take longer than any step: reading data, saving. Those
// that wait for it ask, and wait on. Thread-safe.
class Activities {
 public:
  struct Oldest {
    std::string what;  // "saving a checkpoint"
    double seconds = 0;
  };
  std::uint64_t begin(std::string what);
  void end(std::uint64_t id);
  // The one that has gone on for the longest time; nullopt: there is none.
  std::optional<Oldest> oldest() const;

 private:
  struct Entry {
    std::string what;
    std::chrono::steady_clock::time_point began;
  };
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Entry> entries_;  // in the order in which they began
  std::uint64_t next_ = 1;
};

// One of them, for as long as the object lives. The activities must outlive it; null: nobody is told.
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

// What a rank is doing, as far as another one needs it to explain why it waits.
struct RankStatus {
  std::uint64_t sequence = 0;  // of the last collective that it began in the group asked for; 0: none
  std::string last;            // that one, in words
  double seconds = 0;          // since it began
  std::string running;         // what it is in now, in any group, in words; empty: nothing
  int waiting_for = -1;        // the rank of the job that it waits for in there, or -1
  std::string activity;        // the oldest of its activities; empty: none
  double activity_seconds = 0;

  std::string encode() const;
  // Nullopt when the text is no status.
  static std::optional<RankStatus> decode(const std::string& text);
};

struct RankState {
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(10);

  int rank = 0, world = 1;  // in the job
  std::shared_ptr<AbortState> abort = std::make_shared<AbortState>();
  FlightRecorder recorder;
  // How long this rank waits for a missing one, and for one that is busy with an activity.
  std::atomic<std::chrono::milliseconds> timeout{kDefaultTimeout}, activity_timeout{kDefaultTimeout};
  Activities activities;
  // Told now and then for whom this rank waits, when that one is busy. Null: nobody is. From any thread.
  std::function<void(const std::string& text)> notice;
  // No rank is found missing before this time, because who was had an excuse.
  std::atomic<std::chrono::steady_clock::time_point> excused_until{{}};
  // The status of every rank of the job, nullopt where one does not answer. Null: nobody can be asked.
  std::function<std::vector<std::optional<RankStatus>>(const std::string& group)> ask_all;
};

RankStatus status_of(const RankState& state, const std::string& group);

// Whether all that this rank waits for in the end is ranks that are busy with an activity, for less time than
// activity_timeout. Then `state` is told so, and does not look for missing ranks for another timeout.
// `suspects` and `statuses` as below.
bool excused(RankState& state, std::span<const int> suspects,
             const std::vector<std::optional<RankStatus>>& statuses);

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
