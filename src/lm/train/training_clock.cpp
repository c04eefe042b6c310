#include "lm/train/training_clock.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "lm/events/detectors/detector.h"

namespace primus {
namespace {

constexpr std::size_t kRecent = 15;  // number of recent step times in the median

}  // namespace

std::int64_t data_steps_of(std::int64_t planned) { return planned + planned / 2 + 1; }

void TrainingClock::restore(const ClockState& saved) {
  state_.seconds = saved.seconds;
  state_.warm_seconds = saved.warm_seconds;
  state_.finished = state_.finished && (saved.finished || saved.seconds >= options_.total);
}

void TrainingClock::start(double now) { last_ = now; }

double TrainingClock::remaining(double now) const { return std::max(0.0, options_.total - seconds(now)); }

double TrainingClock::step_seconds() const {
  if (steps_.empty()) return options_.total / static_cast<double>(std::max<std::int64_t>(state_.planned, 1));
  return median_of({steps_.begin(), steps_.end()});
}

double TrainingClock::position(std::int64_t completed, double seconds, double warm_seconds,
                               double end) const {
  const bool warms_up = options_.warmup_steps > 0 && completed <= options_.warmup_steps;
  if (options_.by_steps || warms_up) return static_cast<double>(completed);
  const auto warm = static_cast<double>(options_.warmup_steps), planned = static_cast<double>(state_.planned);
  const double left = end - warm_seconds;
  const double share = left > 0 ? std::clamp((seconds - warm_seconds) / left, 0.0, 1.0) : 1.0;
  return warm + share * std::max(planned - warm, 0.0);
}

double TrainingClock::place(std::int64_t completed) const {
  return position(completed, state_.seconds, state_.warm_seconds, options_.total);
}

TrainingClock::Turn TrainingClock::turn(std::int64_t completed, double now, double at_end) {
  const double spent = seconds(now), end = options_.total - at_end;
  if (previous_turn_ >= 0) {
    steps_.push_back(now - previous_turn_);
    if (steps_.size() > kRecent) steps_.pop_front();
  }
  previous_turn_ = now;
  const double step = step_seconds();
  // The pace includes evaluations and checkpoints between steps, so the pace determines how many steps are
  // left.
  const double pace = steps_.empty() ? step
                                     : std::accumulate(steps_.begin(), steps_.end(), 0.0) /
                                           static_cast<double>(steps_.size());
  const bool warms_up = options_.warmup_steps > 0 && completed <= options_.warmup_steps;
  Turn turn{.last = spent + step / 2 >= end,
            .seconds = spent,
            .warm_seconds = warms_up ? spent : state_.warm_seconds};
  turn.position = position(completed, spent, turn.warm_seconds, end);
  const double more = turn.last ? 0 : std::max(1.0, (end - spent) / std::max(pace, 1e-6));
  turn.total = completed + 1 + static_cast<std::int64_t>(std::min(more, 1e12));
  last_ = now;
  return turn;
}

void TrainingClock::take(const Turn& turn) {
  state_.seconds = turn.seconds;
  state_.warm_seconds = turn.warm_seconds;
  state_.finished = turn.last;
  total_ = turn.total;
}

std::string TrainingClock::encode(const Turn& turn) {
  return fmt::format("{} {} {} {} {}", turn.position, turn.total, turn.last ? 1 : 0, turn.seconds,
                     turn.warm_seconds);
}

TrainingClock::Turn TrainingClock::decode(const std::string& text) {
  std::istringstream in(text);
  Turn turn;
  in >> turn.position >> turn.total >> turn.last >> turn.seconds >> turn.warm_seconds;
  return turn;
}

}  // namespace primus
