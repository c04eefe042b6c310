// The clock of a run that trains for a time (train_minutes) and not for a number of steps.
//
// The time decides when the run ends: with the step whose end is nearest to it, the last evaluation included.
// The rates follow the time as well: warm-up takes its steps, and what is left of the schedule is spread over
// the time that is left. So a machine that gets busy, or free, changes how many steps there are and never the
// shape of the schedule. The number of steps that was planned before the first one decides the order of the
// data only.
//
// Rank 0's clock decides each turn, and the others take it over. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace primus {

// Contents of trainer_state.json (docs/formats/checkpoint.md).
struct ClockState {
  double seconds = 0;           // trained so far
  double warm_seconds = 0;      // of them, until the warm-up was over
  std::int64_t planned = 0;     // steps, by a few that were timed: the length of the schedule
  std::int64_t data_steps = 0;  // steps whose samples the data was ordered for
  bool finished = false;
};

struct ClockOptions {
  double total = 0;               // seconds
  std::int64_t warmup_steps = 0;  // 0 where the warm-up is a share of the schedule
  bool by_steps = false;          // rates follow the steps: lr_decay_iters was chosen
};

// Steps that a run that begins anew orders its data for: more than planned, because a machine that was busy
// while it was timed gets faster.
std::int64_t data_steps_of(std::int64_t planned);

class TrainingClock {
 public:
  TrainingClock(const ClockOptions& options, const ClockState& state)
      : options_(options), state_(state), total_(state.planned) {}

  // The checkpoint that is loaded says how far it is; the plan stays.
  void restore(const ClockState& saved);
  // Training begins or goes on: the clock runs from here. `now`: seconds of a clock that only goes forward.
  void start(double now);

  // For the step about to be taken.
  struct Turn {
    double position = 0;     // in the schedule, in planned steps
    std::int64_t total = 0;  // steps of the run, as estimated now
    bool last = false;       // the run ends with this step
    double seconds = 0, warm_seconds = 0;
  };
  // `completed`: steps before it. `at_end`: seconds that the run takes after its last step.
  Turn turn(std::int64_t completed, double now, double at_end);
  // Another rank's decision; every rank calls it for each step.
  void take(const Turn& turn);
  // Time that goes by outside the steps, as rank 0 has it.
  void set_seconds(double seconds, double now) {
    state_.seconds = seconds;
    last_ = now;
  }

  // The place in the schedule now, about: before the first turn.
  double place(std::int64_t completed) const;
  double seconds(double now) const { return state_.seconds + (now - last_); }
  double remaining(double now) const;
  std::int64_t total() const { return total_; }  // the last turn's, or what was planned
  const ClockState& state() const { return state_; }
  const ClockOptions& options() const { return options_; }
  // Seconds of a step, the median of the last ones; at first what was planned.
  double step_seconds() const;

  static std::string encode(const Turn& turn);
  static Turn decode(const std::string& text);

 private:
  double position(std::int64_t completed, double seconds, double warm_seconds, double end) const;

  ClockOptions options_;
  ClockState state_;
  double last_ = 0;  // when state_.seconds was right
  double previous_turn_ = -1;
  std::deque<double> steps_;  // seconds between turns
  std::int64_t total_ = 0;
};

}  // namespace primus
