// The clock of a run that trains for a time (train_minutes) instead of a number of steps.
//
// The run ends with the step whose end, including the last evaluation, is nearest to the time limit. The
// learning rate also follows time: warm-up has a fixed number of steps, and the rest of the schedule is
// spread over the remaining time. So when a machine becomes slower or faster, the number of steps changes,
// but not the shape of the schedule. The number of steps planned at the start affects only the order of the
// data.
//
// For each step, rank 0 makes a decision (Turn) by its clock, and the other ranks adopt it. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace primus {

// Stored in trainer_state.json (docs/formats/checkpoint.md).
struct ClockState {
  double seconds = 0;        // seconds trained so far
  double warm_seconds = 0;   // seconds before the end of warm-up
  std::int64_t planned = 0;  // number of steps estimated from a few timed steps: the length of the schedule
  std::int64_t data_steps = 0;  // number of steps whose samples are in the data order
  bool finished = false;
};

struct ClockOptions {
  double total = 0;               // time limit in seconds
  std::int64_t warmup_steps = 0;  // steps of warm-up; 0 if warm-up is a fraction of the schedule
  bool by_steps = false;          // whether rates follow steps instead of time, because lr_decay_iters is set
};

// Returns the number of steps for which a new run orders its data. It is above `planned`, because a machine
// that was busy during timing may become faster later.
std::int64_t data_steps_of(std::int64_t planned);

class TrainingClock {
 public:
  TrainingClock(const ClockOptions& options, const ClockState& state)
      : options_(options), state_(state), total_(state.planned) {}

  // Restores the elapsed time from a loaded checkpoint; keeps the plan.
  void restore(const ClockState& saved);
  // Starts the clock. `now`: seconds of a monotonic clock.
  void start(double now);

  // The decision for the next step.
  struct Turn {
    double position = 0;     // schedule position in planned steps
    std::int64_t total = 0;  // total steps of the run, as currently estimated
    bool last = false;       // whether the run ends with this step
    double seconds = 0, warm_seconds = 0;
  };
  // `completed`: steps completed so far. `at_end`: seconds that the run needs after its last step.
  Turn turn(std::int64_t completed, double now, double at_end);
  // Adopts a decision of rank 0. Every rank calls it for each step.
  void take(const Turn& turn);
  // Sets the elapsed seconds to rank 0's value, so that time outside of steps counts.
  void set_seconds(double seconds, double now) {
    state_.seconds = seconds;
    last_ = now;
  }

  // Approximate schedule position, for use before the first call of turn().
  double place(std::int64_t completed) const;
  double seconds(double now) const { return state_.seconds + (now - last_); }
  double remaining(double now) const;
  std::int64_t total() const {
    return total_;
  }  // total of the last decision; before the first one, the
     // planned steps
  const ClockState& state() const { return state_; }
  const ClockOptions& options() const { return options_; }
  // Median seconds of recent steps; at first the planned value.
  double step_seconds() const;

  static std::string encode(const Turn& turn);
  static Turn decode(const std::string& text);

 private:
  double position(std::int64_t completed, double seconds, double warm_seconds, double end) const;

  ClockOptions options_;
  ClockState state_;
  double last_ = 0;  // time at which state_.seconds was updated
  double previous_turn_ = -1;
  std::deque<double> steps_;  // seconds between calls of turn(), for recent steps
  std::int64_t total_ = 0;
};

}  // namespace primus
