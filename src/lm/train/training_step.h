// One optimizer step of a language model: microbatches forward and backward, gradient norm, update. With data
// parallelism each rank takes its microbatches, numbered as Megatron-LM does: local microbatch i of rank r is
// number i * ranks + r of the global batch. Losses and loads are those of all ranks.
//
// The same code measures (on a rank without memory, batches left out) and trains. Host buffers are handed to
// the device without waiting, and there are two of each: the next step may begin before result() has waited
// for this one, so that the device never waits for the host. Not thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/timing.h"
#include "engine/data_parallel.h"
#include "engine/delayed_scales.h"
#include "engine/rank.h"
#include "engine/schedule_runner.h"
#include "engine/tape.h"
#include "lm/data/batch.h"
#include "lm/model/language_model.h"
#include "lm/optimizer/optimizer.h"
#include "lm/train/loss_rule.h"
#include "lm/train/step_graphs.h"
#include "lm/train/step_inputs.h"
#include "lm/train/step_settings.h"

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

class TrainingStep : private engine::ChunkedModel {
 public:
  // Takes its scalars from the rank's persistent arena. The model's tables must reach `sequence` positions.
  // `scales`: of a precision recipe that has delayed ones, else null.
  // `rule`: decides what losses weigh; null: their mask does.
  TrainingStep(engine::Rank& rank, engine::DataParallel& parallel, const LanguageModel& model,
               Optimizer& optimizer, engine::DelayedScales* scales, const StepSettings& settings,
               LossRule* rule = nullptr);

  // `step` counts from 1 and keys random numbers. One earlier step may still run; for the one before that the
  // host waits, unless result() did.
  void begin(std::int64_t step = 1);
  // This rank's microbatches, in order from 0: runs the schedule as far as it goes with those that are at
  // hand. `batch` is copied before this returns; it is not looked at while measuring.
  void microbatch(std::int64_t index, const data::BatchView& batch);
  // From here on microbatch() and evaluate() throw StopRequest once `stop` is set, on devices that work
  // within the call in the middle of an operator; the step is then left, and what changed the model last is
  // the update before. Null: they do not.
  void set_stop(const std::atomic<bool>* stop) {
    stop_ = stop;
    runner_->set_stop(stop);
  }
  // This rank wants the run to stop after this step; set before finish_gradients(), for each step anew.
  void vote_to_stop(bool wanted) { votes_to_stop_ = wanted; }
  // Of steps with one microbatch: notes down or prescribes its routing. `trace` must outlive them; null: no.
  void set_routing_trace(const RoutingTrace* trace) { trace_ = trace; }
  // The clock of the rank's device: results tell how long steps took. Before the first step, on a rank with
  // memory; null: no clock.
  void set_timing(const DeviceTiming* timing);
  // Ends accumulation: enqueues the sums over ranks, the norm, and the copies of what result() gives.
  void finish_gradients();
  // Of the earliest step that ended accumulation and was not asked for: waits for its loss and norm, but not
  // for what was enqueued later. So the host may ask for a step when the next one is on its way.
  StepResult result();
  // Waits for the step before this one, unless result() did.
  void update(std::int64_t step, double learning_rate, double weight_decay);

  // Adds the loss of one batch in evaluation (no gradients) to a sum; evaluation_loss() waits and divides by
  // the count.
  void begin_evaluation();
  void evaluate(const data::BatchView& batch);
  double evaluation_loss();

  // Repeats the forward passes of the step that result() gave last, and looks for the first operator of this
  // rank that gives a NaN or an infinity: "layers.3.attention". Empty: none does, it appears in the backward
  // pass. Right only while the weights are those of that step.
  std::string find_non_finite();

  const StepSettings& settings() const { return settings_; }
  const StepGraphs& graphs() const { return graphs_; }
  // Why no step is recorded whatever StepSettings::record_after says; empty: nothing stands against it.
  std::string why_not_recorded() const;

 private:
  bool drops_out() const {
    return model_.config().lora.training.dropout > 0 || settings_.precision.at_random;
  }
  engine::ScheduleRunner::Settings runner_settings() const;
  // The sums of losses begin anew.
  void begin_losses();
  Outputs forward(engine::Tape& tape, int chunk, std::int64_t microbatch, engine::Value x) override;
  void losses_ready(const std::vector<engine::Value>& losses) override;
  // Of all tokens' losses those that this rank counts.
  Tensor own_losses(const engine::Value& losses) const;
  void evaluate(const data::BatchView& batch, bool with_mtp);
  // Through a part of the pinned buffer that no copy reads any more: begin() and update() have one each.
  enum class ScalarsOf : std::uint8_t { kBegin, kUpdate };
  void upload_scalars(ScalarsOf of, std::int64_t step, double learning_rate, double weight_decay);
  // Of a microbatch in the mean over the global batch.
  double loss_weight() const;
  double read_scalar(const Tensor& scalar);
  std::vector<LayerRouting> routing_of(const std::byte* load) const;
  void add_router_losses(const std::byte* losses, std::vector<LayerRouting>& layers) const;
  // Lists what the host reads of a step.
  void list_results();

  engine::Rank& rank_;
  engine::DataParallel& parallel_;
  const LanguageModel& model_;
  Optimizer& optimizer_;
  engine::DelayedScales* scales_;
  StepSettings settings_;
  LossRule* rule_;
  StepInputs inputs_;
  std::unique_ptr<engine::ScheduleRunner> runner_;
  StepGraphs graphs_;
  // Of the recorded first and further microbatches: where their inputs lie on the device.
  std::array<std::vector<Tensor>, 2> recorded_inputs_;
  engine::Tape tape_;  // of evaluation
  Tensor loss_, non_finite_;
  Tensor stop_votes_;    // fp32
  Tensor scalars_;       // turbo/step_scalars.h
  Tensor mtp_loss_;      // of models with multi-token prediction
  Tensor metrics_;       // of a rule that has some
  RoutingStep routing_;  // of models with experts
  engine::DropoutSource dropout_;
  const RoutingTrace* trace_ = nullptr;
  const std::atomic<bool>* stop_ = nullptr;
  bool first_microbatch_ = true, votes_to_stop_ = false;
  bool evaluates_mtp_ = false;
  std::int64_t evaluated_ = 0;

  // A value on the device that the host reads after each step, and where it belongs.
  struct Result {
    Tensor from;
    std::function<void(const std::byte*, StepResult&)> read;
  };
  std::vector<Result> results_;  // in the order in which they lie in HostSide::results

  // The host's side of a step. There are two, used in turn.
  struct HostSide {
    std::vector<StepInputs::Staging> staging;  // by microbatch: a device reads them later
    PinnedBuffer scalars;                      // of begin() and update()
    PinnedBuffer results;                      // results_, one after the other
    std::unique_ptr<Event> finished;
    bool unread = false;  // `finished` is recorded, and nobody asked for the result
    // With a clock: where the step began, unless it follows one that was on its way; and which of ends_ is
    // its own.
    std::unique_ptr<Event> begun;
    bool follows = false;
    std::size_t end = 0;
  };
  // By the device's clock. Once: the events are used again.
  std::optional<double> seconds_of(const HostSide& host) const;
  std::array<HostSide, 2> host_;
  std::size_t turn_ = 0, last_read_ = 0;  // of host_: this step's, and that of the last result()
  const DeviceTiming* timing_ = nullptr;
  // With a clock: where the gradients of the last three steps ended, in turn. The host may read a step when
  // the next one has ended its own, and the interval begins where the one before did.
  std::array<std::unique_ptr<Event>, 3> ends_;
  std::size_t last_end_ = 0;
};

}  // namespace primus
