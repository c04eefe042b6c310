// Reads the results of training steps on the host. The device copies the results to the host after the work
// of the step. The next step may then already be running. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/timing.h"
#include "engine/runtime/rank.h"
#include "lm/events/iteration.h"

namespace primus {

// How the tokens were distributed over the experts of one layer.
struct LayerRouting {
  std::int64_t layer = 0;
  std::vector<std::int32_t> load;  // number of tokens routed to each expert, including dropped tokens
  double imbalance = 1;            // largest load of an expert divided by the mean load
  double dropped = 0;              // fraction of the router's choices that exceed the capacity
  // Mean losses over microbatches, without their coefficients (turbo::RouterLosses); balance_loss is set only
  // if it is part of the training objective.
  double balance_loss = 0, z_loss = 0;
};

struct StepResult {
  // Mean over microbatches of the mean loss of unmasked tokens. With BatchView::loss_divisor, the sum of
  // losses is divided by that divisor instead.
  double loss = 0;
  double gradient_norm = 0;  // gradient norm before clipping
  int stop_votes = 0;        // number of ranks that voted to stop (TrainingStep::vote_to_stop)
  // Loss of multi-token prediction, without its coefficient: the mean over depths. Empty if the model has no
  // multi-token prediction.
  std::optional<double> mtp_loss;
  std::vector<LayerRouting> routing;  // routing of each layer with experts; empty for dense models
  // Metrics of a loss rule (LossRule::metrics), except "loss".
  std::vector<std::pair<std::string, double>> metrics;
  // Seconds on the device clock (TrainingStep::set_timing), from the end of the previous step's gradients to
  // the end of this step's gradients. If the previous step had already ended when this step began, the time
  // counts from this step's start and includes no update. Empty if the device has no clock, or if the result
  // was already read.
  std::optional<double> seconds;
  // The work of each rank (TrainingStep::report_work), on rank 0; empty on other ranks and in runs of one
  // rank.
  std::vector<RankWork> ranks;
};

// Reads the results of the current step and of the previous step; consecutive steps use different buffers.
class StepResults {
 public:
  // Function that stores a value in the result. `at` points to the copy of the value on the host.
  using Read = std::function<void(const std::byte* at, StepResult& result)>;

  // `rank` must have memory and outlive this object.
  explicit StepResults(engine::Rank& rank) : rank_(rank) {}

  // Adds a device value and the function that stores it in the result. Call this function before reserve().
  // Ignores absent tensors.
  void add(const Tensor& from, Read read);
  void reserve();
  // Sets the clock of the rank's device; null: times are not measured. Call this function before the first
  // step.
  void set_timing(const DeviceTiming* timing);

  // Marks the beginning of a step. Call this function before enqueueing work of the step.
  void begin_clock();
  // Switches between the two buffers (sides_). First waits for the last step that used the next buffer, which
  // is the step before the previous one.
  void take_turn();
  std::size_t turn() const { return turn_; }
  // Enqueues the copies to the host. Call this function after enqueueing the step's work.
  void enqueue();
  // Returns the result of the earliest enqueued step whose result has not been read. Waits for that step, but
  // not for later work.
  StepResult result();
  std::size_t last_read() const { return last_read_; }  // turn() of the step whose result was returned last
  // Waits for the previous step, unless result() has already waited for it.
  void wait_for_last() const;

 private:
  struct Value {
    Tensor from;
    Read read;
  };
  struct Side {
    PinnedBuffer values;  // copies of the values, concatenated
    std::unique_ptr<Event> finished;
    bool unread = false;  // whether `finished` has been recorded and the result has not been read
    // Used with a clock: the event at the start of the step. The event is not used if the previous step is
    // still running at that time. The index is the position of the step's end event in ends_.
    std::unique_ptr<Event> begun;
    bool follows = false;
    std::size_t end = 0;
  };
  // Returns the step's seconds on the device clock. Call this function once per step, because events are
  // reused.
  std::optional<double> seconds_of(const Side& side) const;

  engine::Rank& rank_;
  std::vector<Value> values_;
  std::array<Side, 2> sides_;
  std::size_t turn_ = 0, last_read_ = 0;  // indices in sides_ of the current step and of the last result()
  const DeviceTiming* timing_ = nullptr;
  // Used with a clock: the events at the end of the gradients of the last three steps. The time of a step is
  // measured from the end of the previous step. The host may read the result of a step late, after
  // the next step has ended, so events of three steps are kept.
  std::array<std::unique_ptr<Event>, 3> ends_;
  std::size_t last_end_ = 0;
};

}  // namespace primus
