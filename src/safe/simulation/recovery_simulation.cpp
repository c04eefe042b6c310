#include "safe/simulation/recovery_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>

#include "base/error.h"
#include "base/random/random.h"
#include "safe/supervise/recovery/time_account.h"

namespace primus::simulation {
namespace {

using supervise::Action;
using supervise::EndKind;
using supervise::JobEnd;

constexpr double kHourSeconds = 3600, kDaySeconds = 24 * kHourSeconds;

// Random numbers of one run, in the order of their use.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : stream_(seed, RandomPurpose::kData) {}

  // Returns a number in (0, 1).
  double uniform() {
    const Philox::Counter words = stream_.quad(next_++);
    const std::uint64_t bits = (std::uint64_t{words[0]} << 20) ^ (words[1] >> 12);
    return (static_cast<double>(bits) + 0.5) * 0x1p-52;
  }
  double exponential(double mean) { return -mean * std::log(uniform()); }

 private:
  RandomStream stream_;
  std::uint64_t next_ = 0;
};

void require(bool holds, std::string_view what) {
  if (!holds) throw invalid(fmt::format("{} is out of range", what));
}

void check(const Scenario& s) {
  const auto finite = [](double value) { return std::isfinite(value) && value >= 0; };
  require(s.nodes >= 1, "the number of nodes");
  require(s.spares >= 0, "the number of spares");
  require(finite(s.node_hours) && s.node_hours > 0, "the time between faults of a node");
  require(finite(s.repair_hours), "the time of a repair");
  require(finite(s.step_seconds) && s.step_seconds > 0, "the time of a step");
  require(s.save_interval >= 1, "the number of steps between saves");
  require(finite(s.save_pause) && finite(s.save_seconds), "the time of a save");
  require(s.snapshot_interval >= 0, "the number of steps between snapshots");
  require(finite(s.snapshot_pause) && finite(s.snapshot_seconds), "the time of a snapshot");
  require(finite(s.start_seconds), "the time of a start");
  require(finite(s.days) && s.days > 0, "the length of the run");
  constexpr double kMostSaves = 1e7;
  const double steps = s.days * kDaySeconds / s.step_seconds;
  if (steps / static_cast<double>(s.save_interval) > kMostSaves)
    throw invalid(fmt::format("a run of {:g} days saves more than {:g} checkpoints", s.days, kMostSaves),
                  "choose a larger save interval, or fewer days");
  if (s.snapshot_interval > 0 && steps / static_cast<double>(s.snapshot_interval) > kMostSaves)
    throw invalid(fmt::format("a run of {:g} days takes more than {:g} snapshots", s.days, kMostSaves),
                  "choose a larger snapshot interval, or fewer days");
}

class Simulation {
 public:
  Simulation(const Scenario& scenario, std::uint64_t seed)
      : s_(scenario),
        draws_(seed),
        end_(scenario.days * kDaySeconds),
        policy_(scenario.limits),
        account_(0),
        spares_(scenario.spares) {}

  Outcome run() {
    while (now_ < end_) {
      const double start = now_;
      const double fault =
          start + draws_.exponential(s_.node_hours * kHourSeconds / static_cast<double>(s_.nodes));
      JobEnd ended = attempt(fault);
      if (fault >= end_) break;
      if (!recover(ended)) break;
    }
    const double stop = out_.gave_up.empty() ? end_ : std::min(now_, end_);
    out_.times = account_.up_to(stop);
    out_.restarts = policy_.restarts();
    out_.goodput = out_.times.useful / end_;
    return std::move(out_);
  }

 private:
  // A kind of saved state: checkpoints, or snapshots in memory.
  struct Saves {
    std::int64_t newest = 0, written = 0;  // newest usable state; the one that is being written
    double usable_at = std::numeric_limits<double>::infinity();  // time at which `written` is usable

    // Begins to write the state of a step, after the state before it. Returns the time after the pause.
    double begin(std::int64_t step, double time, double last, double pause, double seconds) {
      if (std::isfinite(usable_at)) time = std::max(time, usable_at);
      if (time > last) return time;
      if (std::isfinite(usable_at)) newest = written;
      written = step;
      time += pause;
      usable_at = time + seconds;
      return time;
    }
    // Whether a state is still being written.
    bool busy(double time) const { return std::isfinite(usable_at) && time < usable_at; }
    // The job ends at this time.
    void end(double time) {
      if (usable_at <= time) newest = written;
      usable_at = std::numeric_limits<double>::infinity();
    }
  };

  // Runs the job from now_ until the fault or the end of the run.
  JobEnd attempt(double fault) {
    const double last = std::min(fault, end_);
    std::int64_t step = std::max(checkpoints_.newest, snapshots_.newest);
    JobEnd ended{.exit_code = 3, .step = step};
    double time = now_ + s_.start_seconds;
    if (time <= last) {
      account_.begin(step, time);
      ended.began = step;
      time = train(step, time, last);
    }
    checkpoints_.end(last);
    snapshots_.end(last);
    ended.step = step;
    ended.checkpoint = checkpoints_.newest;
    ended.snapshot = snapshots_.newest;
    now_ = last;
    return ended;
  }

  // Trains until `last`, and updates `step`. Returns the time of the last completed event.
  double train(std::int64_t& step, double time, double last) {
    for (;;) {
      // All steps until the next save or snapshot, or as many as end before `last`.
      const std::int64_t save = s_.save_interval - step % s_.save_interval;
      const std::int64_t snapshot =
          s_.snapshot_interval > 0 ? s_.snapshot_interval - step % s_.snapshot_interval : save + 1;
      const std::int64_t due = std::min(save, snapshot);
      const double fit = std::floor((last - time) / s_.step_seconds);
      const std::int64_t done = fit < static_cast<double>(due) ? static_cast<std::int64_t>(fit) : due;
      if (done > 0) {
        const double seconds = static_cast<double>(done) * s_.step_seconds;
        time += seconds;
        step += done;
        account_.step(step, seconds, time);
      }
      if (done < due) return time;
      if (due == save) {
        account_.saving(step, time);
        time = checkpoints_.begin(step, time, last, s_.save_pause, s_.save_seconds);
        if (time > last) return time;
      }
      // Training does not wait for a snapshot: the next one is left out instead.
      if (due == snapshot && !snapshots_.busy(time)) {
        account_.copying(step, time);
        time = snapshots_.begin(step, time, last, s_.snapshot_pause, s_.snapshot_seconds);
        if (time > last) return time;
      }
    }
  }

  const FaultKind& kind() {
    double rest = draws_.uniform();
    for (const FaultKind& kind : published_faults()) {
      if (rest < kind.share) return kind;
      rest -= kind.share;
    }
    return published_faults().back();
  }

  // Detects the fault, and asks the policy. Returns false if the policy gives up or the run is over.
  bool recover(JobEnd& ended) {
    const FaultKind& fault = kind();
    ++out_.faults;
    now_ += std::max(fault.detection, fault.steps_wait ? 3 * s_.step_seconds : 0.0);
    if (now_ >= end_) return false;
    account_.detected(now_);
    account_.keeps(std::max(checkpoints_.newest, snapshots_.newest));
    ended.kind = fault.end;
    ended.rank = static_cast<int>(draws_.uniform() * static_cast<double>(s_.nodes));
    ended.time = now_;
    ended.text = fmt::format("{} {}", fault.name, out_.faults);  // different faults are no crash loop
    const Action action = policy_.decide(ended);
    if (action.kind != Action::Kind::kRestart) {
      out_.gave_up = action.reason;
      return false;
    }
    now_ += action.delay;
    if (fault.removes_node && !replace_node()) {
      out_.gave_up = supervise::name_of(EndKind::kLostNode);
      return false;
    }
    return now_ < end_;
  }

  // Returns false if no node comes in time.
  bool replace_node() {
    repaired_.push(now_ + draws_.exponential(s_.repair_hours * kHourSeconds));
    while (!repaired_.empty() && repaired_.top() <= now_) {
      ++spares_;
      repaired_.pop();
    }
    if (spares_ > 0) {
      --spares_;
      return true;
    }
    const double back = repaired_.top();
    repaired_.pop();
    if (back - now_ > s_.limits.node_wait) {
      const double until = std::min(now_ + s_.limits.node_wait, end_);
      out_.waiting += until - std::min(now_, end_);
      now_ = until;
      return now_ >= end_;
    }
    out_.waiting += std::min(back, end_) - std::min(now_, end_);
    now_ = back;
    return true;
  }

  const Scenario& s_;
  Draws draws_;
  const double end_;
  supervise::RecoveryPolicy policy_;
  supervise::TimeAccount account_;
  std::int64_t spares_;
  std::priority_queue<double, std::vector<double>, std::greater<>> repaired_;
  double now_ = 0;
  Saves checkpoints_, snapshots_;
  Outcome out_;
};

// Counts of table 5.
constexpr double kNodeFaults = 148 + 72 + 32 + 19 + 17 + 7 + 6 + 3 + 3 + 2 + 2 + 2 + 2;
constexpr double kSoftware = 54 + 2, kNetwork = 35, kHangs = 7;
constexpr double kAll = kNodeFaults + kSoftware + kNetwork + kHangs;
static_assert(kAll == 419 - 6);

}  // namespace

const std::vector<FaultKind>& published_faults() {
  // Times of detection: docs/supervise.md. A lost rank is reported by its peers after ten seconds.
  static const std::vector<FaultKind> kinds = {
      {.name = "node",
       .end = EndKind::kLostRank,
       .share = kNodeFaults / kAll,
       .detection = 10,
       .removes_node = true},
      {.name = "software", .end = EndKind::kCrashed, .share = kSoftware / kAll, .detection = 1},
      {.name = "network", .end = EndKind::kLostRank, .share = kNetwork / kAll, .detection = 10},
      {.name = "hang", .end = EndKind::kHang, .share = kHangs / kAll, .detection = 15, .steps_wait = true},
  };
  return kinds;
}

double published_node_hours() { return 54 * 24 * (16384.0 / 8) / kAll; }

Outcome simulate(const Scenario& scenario, std::uint64_t seed) {
  check(scenario);
  return Simulation(scenario, seed).run();
}

}  // namespace primus::simulation
