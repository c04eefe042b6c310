// Results of a training step on the host: the device copies them after the step's work, while the next step
// is already running. Not thread-safe.
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

// How a step's tokens spread over the experts of one layer.
struct LayerRouting {
  std::int64_t layer = 0;
  std::vector<std::int32_t> load;  // choices of each expert, dropped ones included
  double imbalance = 1;            // the largest load over the mean
  double dropped = 0;              // share of choices beyond the capacity
  // Means over microbatches, without their coefficients (turbo::RouterLosses); the first only if it is
  // trained.
  double balance_loss = 0, z_loss = 0;
};

struct StepResult {
  // Mean over microbatches of the mean over their unmasked tokens, or of what BatchView::loss_divisor says.
  double loss = 0;
  double gradient_norm = 0;  // before clipping
  int stop_votes = 0;        // ranks that want to stop (TrainingStep::vote_to_stop)
  // Of multi-token prediction, without its scale: mean over depths of what `loss` is for each. Empty: the
  // model has none.
  std::optional<double> mtp_loss;
  std::vector<LayerRouting> routing;                    // of the layers that route; empty for dense models
  std::vector<std::pair<std::string, double>> metrics;  // of a loss rule (LossRule::metrics), but "loss"
  // By the device's clock (TrainingStep::set_timing): from where the gradients of the step before ended to
  // where its own did. Of a step that began when no other was on its way: from its beginning, so without an
  // update. Empty: the device has no such clock, or the result was asked for once more.
  std::optional<double> seconds;
};

// Reads the results of two steps in turn: the one that is running, and the one before.
class StepResults {
 public:
  // `at` is the host's copy of the value.
  using Read = std::function<void(const std::byte* at, StepResult& result)>;

  // On a rank with memory; must not outlive it.
  explicit StepResults(engine::Rank& rank) : rank_(rank) {}

  // A value on the device, and where it belongs in the result; before reserve(). Absent ones are left out.
  void add(const Tensor& from, Read read);
  void reserve();
  // The clock of the rank's device; null: none. Before the first step.
  void set_timing(const DeviceTiming* timing);

  // A step begins: before anything of it is enqueued.
  void begin_clock();
  // Its turn, for which the step before the last one must be over: waits for that.
  void take_turn();
  std::size_t turn() const { return turn_; }
  // Enqueues the copies after the step's work.
  void enqueue();
  // The result of the earliest step that was enqueued and not read: waits for it, but not for what was
  // enqueued later.
  StepResult result();
  std::size_t last_read() const { return last_read_; }  // the turn of that step
  // Waits for the step before this one, unless result() did.
  void wait_for_last() const;

 private:
  struct Value {
    Tensor from;
    Read read;
  };
  struct Side {
    PinnedBuffer values;  // values_, one after the other
    std::unique_ptr<Event> finished;
    bool unread = false;  // `finished` is recorded, and nobody asked for the result
    // With a clock: where the step began, unless it follows one that was on its way; and which of ends_ is
    // its own.
    std::unique_ptr<Event> begun;
    bool follows = false;
    std::size_t end = 0;
  };
  // By the device's clock. Once: the events are used again.
  std::optional<double> seconds_of(const Side& side) const;

  engine::Rank& rank_;
  std::vector<Value> values_;
  std::array<Side, 2> sides_;
  std::size_t turn_ = 0, last_read_ = 0;  // of sides_: this step's, and that of the last result()
  const DeviceTiming* timing_ = nullptr;
  // With a clock: where the gradients of the last three steps ended, in turn. The host may read a step when
  // the next one has ended its own, and the interval begins where the one before did.
  std::array<std::unique_ptr<Event>, 3> ends_;
  std::size_t last_end_ = 0;
};

}  // namespace primus
