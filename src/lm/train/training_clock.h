// The clock of a run whose length is a time (train_minutes) instead of a number of steps.
//
// The run ends with the step whose end, including the last evaluation, is nearest to the time limit. The
// learning rate also follows time: warm-up has a fixed number of steps, and the rest of the schedule is
// spread over the remaining time. A slower or faster machine changes the number of steps but not the shape of
// the schedule. The number of steps that is planned at the start affects only the order of the data.
//
// For each step, rank 0 makes a decision (Turn) by its own clock, and the other ranks adopt this decision.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace primus {

// The state of the clock in trainer_state.json (docs/formats/checkpoint.md).
struct ClockState {
  double seconds = 0;           // seconds trained so far
  double warm_seconds = 0;      // seconds trained until warm-up ended
  std::int64_t planned = 0;     // length of the schedule in steps, estimated from the time of a few steps
  std::int64_t data_steps = 0;  // number of steps whose samples are in the data order
  bool finished = false;
};

struct ClockOptions {
  double total = 0;               // time limit in seconds
  std::int64_t warmup_steps = 0;  // number of warm-up steps; 0 if warm-up is a fraction of the schedule
  bool by_steps = false;          // true: learning rates follow steps instead of time, because lr_decay_iters
                                  // is set
};

// Returns the number of steps for which a new run orders its data. This number is larger than `planned`,
// because later steps may be faster than the timed steps.
std::int64_t data_steps_of(std::int64_t planned);

class TrainingClock {
 public:
  TrainingClock(const ClockOptions& options, const ClockState& state)
      : options_(options), state_(state), total_(state.planned) {}

  // Restores the elapsed time from a loaded checkpoint. The plan does not change.
  void restore(const ClockState& saved);
  // Starts the clock. `now`: seconds of a monotonic clock.
  void start(double now);

  // The decision for the next step.
  struct Turn {
    double position = 0;     // position in the schedule, in planned steps
    std::int64_t total = 0;  // total steps of the run, as currently estimated
    bool last = false;       // whether the run ends with this step
    double seconds = 0, warm_seconds = 0;
  };
  // Returns the decision for the next step. `completed`: number of completed steps. `at_end`: seconds that
  // the run needs after its last step.
  Turn turn(std::int64_t completed, double now, double at_end);
  // Adopts a decision of rank 0. Every rank calls this function for each step.
  void take(const Turn& turn);
  // Sets the elapsed seconds to rank 0's value, so that time outside of steps counts.
  void set_seconds(double seconds, double now) {
    state_.seconds = seconds;
    last_ = now;
  }

  // Returns the approximate position in the schedule, for use before the first call of turn().
  double place(std::int64_t completed) const;
  double seconds(double now) const { return state_.seconds + (now - last_); }
  double remaining(double now) const;
  std::int64_t total() const {
    return total_;
  }  // `total` of the last decision; before the first decision, the number of planned steps
  const ClockState& state() const { return state_; }
  const ClockOptions& options() const { return options_; }
  // Returns the median time of recent steps in seconds; before the first step, the planned time.
  double step_seconds() const;

  static std::string encode(const Turn& turn);
  static Turn decode(const std::string& text);

 private:
  double position(std::int64_t completed, double seconds, double warm_seconds, double end) const;

  ClockOptions options_;
  ClockState state_;
  double last_ = 0;  // time at which state_.seconds was last updated
  double previous_turn_ = -1;
  std::deque<double> steps_;  // seconds between calls of turn(), for recent steps
  std::int64_t total_ = 0;
};

}  // namespace primus
