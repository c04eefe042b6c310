// Reads results of a training step on the host. The device copies them after the step's work, and the next
// step may already run. Not thread-safe.
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
#include "engine/rank.h"

namespace primus {

// Token distribution over the experts of one layer.
struct LayerRouting {
  std::int64_t layer = 0;
  std::vector<std::int32_t> load;  // number of tokens routed to each expert, including dropped tokens
  double imbalance = 1;            // the largest load over the mean
  double dropped = 0;              // fraction of choices beyond the capacity
  // Mean losses over microbatches, without their coefficients (turbo::RouterLosses); balance_loss is set only
  // if it is trained.
  double balance_loss = 0, z_loss = 0;
};

struct StepResult {
  // Mean over microbatches of the mean loss over their unmasked tokens. With BatchView::loss_divisor, the sum
  // of losses is divided by that divisor instead.
  double loss = 0;
  double gradient_norm = 0;  // gradient norm before clipping
  int stop_votes = 0;        // number of ranks that voted to stop (TrainingStep::vote_to_stop)
  // Loss of multi-token prediction, without its coefficient: the mean over depths. Empty if the model has
  // none.
  std::optional<double> mtp_loss;
  std::vector<LayerRouting> routing;  // routing of each layer with experts; empty for dense models
  // Metrics of a loss rule (LossRule::metrics), except "loss".
  std::vector<std::pair<std::string, double>> metrics;
  // Seconds on the device clock (TrainingStep::set_timing), from the end of the previous step's gradients to
  // the end of this step's gradients. If no earlier step was in flight, the time counts from this step's
  // start and includes no update. Empty if the device has no clock, or if the result was read before.
  std::optional<double> seconds;
};

// Reads the results of two alternating steps: the running one and the previous one.
class StepResults {
 public:
  // `at` points to the value's copy on the host.
  using Read = std::function<void(const std::byte* at, StepResult& result)>;

  // `rank` must have memory and outlive this.
  explicit StepResults(engine::Rank& rank) : rank_(rank) {}

  // Adds a device value and the function that stores it in the result. Call it before reserve(). Ignores
  // absent tensors.
  void add(const Tensor& from, Read read);
  void reserve();
  // Sets the clock of the rank's device; null: none. Call it before the first step.
  void set_timing(const DeviceTiming* timing);

  // Marks the beginning of a step. Call it before enqueueing any of its work.
  void begin_clock();
  // Switches to the other of the two buffers (sides_). Waits for the step before the previous one, which used
  // this buffer last.
  void take_turn();
  std::size_t turn() const { return turn_; }
  // Enqueues the copies. Call it after the step's work.
  void enqueue();
  // Returns the result of the earliest step that was enqueued and not read. Waits for that step, but not for
  // later work.
  StepResult result();
  std::size_t last_read() const { return last_read_; }  // turn() of the step that result() returned last
  // Waits for the previous step, unless result() did.
  void wait_for_last() const;

 private:
  struct Value {
    Tensor from;
    Read read;
  };
  struct Side {
    PinnedBuffer values;  // the values, one after the other
    std::unique_ptr<Event> finished;
    bool unread = false;  // whether `finished` is recorded and the result was not read
    // Used with a clock: `begun` is the event at the step's start, unused if the step follows a step in
    // flight. The index locates the step's end event in ends_.
    std::unique_ptr<Event> begun;
    bool follows = false;
    std::size_t end = 0;
  };
  // Returns the step's seconds on the device clock. Call it once per step, because events are reused.
  std::optional<double> seconds_of(const Side& side) const;

  engine::Rank& rank_;
  std::vector<Value> values_;
  std::array<Side, 2> sides_;
  std::size_t turn_ = 0, last_read_ = 0;  // indices in sides_ of the current step and of the last result()
  const DeviceTiming* timing_ = nullptr;
  // Used with a clock: the events at the end of the gradients of the last three steps. Three events are
  // needed, because the host may read a step after the next step has ended, and because a step's interval
  // starts at the end of the previous step.
  std::array<std::unique_ptr<Event>, 3> ends_;
  std::size_t last_end_ = 0;
};

}  // namespace primus
