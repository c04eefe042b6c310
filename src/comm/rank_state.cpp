#include "comm/rank_state.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/text/json_text.h"

namespace primus::comm {

struct AbortState::Listeners {
  std::mutex mutex;  // held while listeners run, so unsubscribing waits until they have returned
  std::map<std::uint64_t, Listener> by_id;
  std::uint64_t next = 0;
  bool called = false;
};

AbortState::AbortState() : listeners_(std::make_shared<Listeners>()) {}

bool AbortState::abort(const std::string& reason, ErrorKind kind) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return false;
    reason_ = reason;
    kind_ = kind;
    aborted_.store(true, std::memory_order_release);
  }
  const std::lock_guard lock(listeners_->mutex);
  listeners_->called = true;
  for (const auto& [id, listener] : listeners_->by_id) listener(reason, kind);
  return true;
}

std::string AbortState::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

void AbortState::throw_reason() const {
  ErrorKind kind;
  {
    const std::lock_guard lock(mutex_);
    kind = kind_;
  }
  throw Error(kind, reason(),
              "read the output and the log of the rank that failed first; for a run, 'primus postmortem RUN' "
              "names it");
}

std::shared_ptr<void> AbortState::subscribe(Listener listener) {
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(listeners_->mutex);
    if (!listeners_->called) {
      id = ++listeners_->next;
      listeners_->by_id.emplace(id, std::move(listener));
    }
  }
  if (id == 0) {
    std::string text;
    ErrorKind kind;
    {
      const std::lock_guard lock(mutex_);
      text = reason_;
      kind = kind_;
    }
    listener(text, kind);
    return nullptr;
  }
  return {nullptr, [listeners = listeners_, id](void*) {
            const std::lock_guard lock(listeners->mutex);
            listeners->by_id.erase(id);
          }};
}

// ---- What ranks are doing -----------------------------------------------------------------------

std::uint64_t Activities::begin(std::string what) {
  const std::lock_guard lock(mutex_);
  entries_[next_] = {std::move(what), std::chrono::steady_clock::now()};
  return next_++;
}

void Activities::end(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  entries_.erase(id);
}

std::optional<Activities::Oldest> Activities::oldest() const {
  const std::lock_guard lock(mutex_);
  if (entries_.empty()) return std::nullopt;
  const Entry& first = entries_.begin()->second;
  return Oldest{first.what,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - first.began).count()};
}

std::string RankStatus::encode() const {
  return json_text(nlohmann::ordered_json{{"sequence", sequence},
                                          {"last", last},
                                          {"seconds", seconds},
                                          {"running", running},
                                          {"waiting_for", waiting_for},
                                          {"activity", activity},
                                          {"activity_seconds", activity_seconds}},
                   -1);
}

std::optional<RankStatus> RankStatus::decode(const std::string& text) {
  try {
    const nlohmann::json object = parse_json_object(text, "status");
    RankStatus status;
    object.at("sequence").get_to(status.sequence);
    object.at("last").get_to(status.last);
    object.at("seconds").get_to(status.seconds);
    object.at("running").get_to(status.running);
    object.at("waiting_for").get_to(status.waiting_for);
    object.at("activity").get_to(status.activity);
    object.at("activity_seconds").get_to(status.activity_seconds);
    return status;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

RankStatus status_of(const RankState& state, const std::string& group) {
  RankStatus status;
  if (auto activity = state.activities.oldest()) {
    status.activity = std::move(activity->what);
    status.activity_seconds = activity->seconds;
  }
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (const FlightRecorder::Record& record : state.recorder.records()) {
    const bool running =
        record.state == FlightRecorder::State::kRunning || record.state == FlightRecorder::State::kFailed;
    if (running) {
      status.running = record.to_string();
      status.waiting_for = record.waiting_for;
    }
    if (record.group == group && record.state != FlightRecorder::State::kEnqueued &&
        record.sequence > status.sequence) {
      status.sequence = record.sequence;
      status.last = record.to_string();
      status.seconds = now - record.started;
    }
  }
  return status;
}

namespace {

const RankStatus* status_in(const std::vector<std::optional<RankStatus>>& statuses, int rank) {
  const auto index = static_cast<std::size_t>(rank);
  return rank >= 0 && index < statuses.size() && statuses[index] ? &*statuses[index] : nullptr;
}

// Follows the chain of ranks that wait for each other. Returns the rank at the end of the chain, which waits
// for no other rank and is therefore the cause. Appends a description of the chain to `reported`.
int end_of_chain(int rank, const std::vector<std::optional<RankStatus>>& statuses, std::string& reported) {
  for (std::size_t hops = 0; hops < statuses.size(); ++hops) {
    const RankStatus* const status = status_in(statuses, rank);
    if (!status || status->running.empty() || status->waiting_for < 0 ||
        static_cast<std::size_t>(status->waiting_for) >= statuses.size() || status->waiting_for == rank) {
      break;
    }
    reported +=
        fmt::format("rank {} is in {} and waits for rank {}; ", rank, status->running, status->waiting_for);
    rank = status->waiting_for;
  }
  return rank;
}

std::string activity_of(int rank, const RankStatus& status) {
  return fmt::format("rank {} has been {} for {:.1f} s", rank, status.activity, status.activity_seconds);
}

}  // namespace

bool excused(RankState& state, std::span<const int> suspects,
             const std::vector<std::optional<RankStatus>>& statuses) {
  const double limit = std::chrono::duration<double>(state.activity_timeout.load()).count();
  std::string busy;
  for (const int suspect : suspects) {
    std::string way;
    const int rank = end_of_chain(suspect, statuses, way);
    const RankStatus* const status = status_in(statuses, rank);
    if (!status || status->activity.empty() || status->activity_seconds > limit) return false;
    if (busy.empty()) busy = activity_of(rank, *status);
  }
  if (busy.empty()) return false;
  state.excused_until = std::chrono::steady_clock::now() + state.timeout.load();
  if (state.notice) state.notice(busy);
  return true;
}

std::string diagnose(const FlightRecorder::Record& mine, std::chrono::milliseconds waited,
                     std::span<const int> suspects, const std::vector<std::optional<RankStatus>>& statuses) {
  std::string text = fmt::format("{} did not complete within {:.1f} s", mine.to_string(),
                                 std::chrono::duration<double>(waited).count());
  constexpr std::size_t kNamed = 8;  // maximum number of named ranks; further ranks are only counted
  std::set<int> named;
  std::size_t seen = 0;
  for (; seen < suspects.size() && named.size() < kNamed; ++seen) {
    std::string chain;
    const int rank = end_of_chain(suspects[seen], statuses, chain);
    if (!named.insert(rank).second) continue;
    text += "; " + chain;
    const RankStatus* const status = status_in(statuses, rank);
    if (!status) {
      text += fmt::format("rank {} is missing and does not answer", rank);
    } else if (!status->activity.empty()) {
      text += activity_of(rank, *status);
    } else if (!status->running.empty()) {
      text += fmt::format("rank {} is in {}", rank, status->running);
    } else if (status->last.empty()) {
      text += fmt::format("rank {} has not called it or any other collective of that group", rank);
    } else {
      text += fmt::format("rank {} has not called it: its last collective in that group was {}, {:.1f} s ago",
                          rank, status->last, status->seconds);
    }
  }
  if (seen < suspects.size()) text += fmt::format("; and {} more", suspects.size() - seen);
  return text;
}

}  // namespace primus::comm
