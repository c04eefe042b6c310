// One optimizer step of a language model: microbatches forward and backward, gradient norm, update. With data
// parallelism, microbatches are distributed as in Megatron-LM: local microbatch i of rank r is number i *
// ranks + r of the global batch. Losses and expert loads cover all ranks.
//
// This class is used for measuring (on a rank without memory, with empty batches) and for training. Host
// buffers are passed to the device without waiting. Each buffer exists twice, so that the next step may begin
// before this step's result is read. The device therefore does not wait until the host has read a result. Not
// thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/timing.h"
#include "engine/parallel/data_parallel.h"
#include "engine/parallel/schedule_runner.h"
#include "engine/runtime/delayed_scales.h"
#include "engine/runtime/rank.h"
#include "engine/runtime/tape.h"
#include "lm/data/batch.h"
#include "lm/model/language_model.h"
#include "lm/optimizer/optimizer.h"
#include "lm/train/step/loss_rule.h"
#include "lm/train/step/step_graphs.h"
#include "lm/train/step/step_inputs.h"
#include "lm/train/step/step_results.h"
#include "lm/train/step/step_settings.h"

namespace primus {

class TrainingStep : private engine::ChunkedModel {
 public:
  // Allocates the step's scalars in the rank's persistent arena. The model's rope tables must cover
  // `sequence` positions. `scales`: null if the precision recipe has no delayed scales. `rule` sets the loss
  // weights; if null, the mask sets them.
  TrainingStep(engine::Rank& rank, engine::DataParallel& parallel, const LanguageModel& model,
               Optimizer& optimizer, engine::DelayedScales* scales, const StepSettings& settings,
               LossRule* rule = nullptr);

  // Makes every step also train the model of `other`, on the same microbatches; no other code may call
  // `other`, which must outlive this object. Results are of both models: the sum of the losses, the common
  // gradient norm, and all metrics. Call this function before the first step.
  void join(TrainingStep& other);

  // Begins a step. `step` is 1 for the first step and determines the random numbers. The previous step may
  // still be running. Waits for the step before the previous one, unless result() has already waited for it.
  // `microbatches`: the step consists of this number of microbatches; -1: all microbatches of the settings.
  // Fewer than all are allowed only if may_skip() returns true.
  void begin(std::int64_t step = 1, std::int64_t microbatches = -1);
  // Returns whether a step without its last microbatches gives the same result as a step in which these
  // microbatches have only losses of weight 0. False with pipelines, whose schedules need all microbatches,
  // and with experts or delayed scales, which use statistics of all tokens.
  bool may_skip() const;
  // Adds microbatch `index` of this rank (0, 1, ... in order), and runs the schedule as far as the
  // available microbatches allow. `batch` is copied before the call returns. `batch` is not read while
  // measuring.
  void microbatch(std::int64_t index, const data::BatchView& batch);
  // Makes microbatch() and evaluate() throw StopRequest when `stop` is set. On synchronous devices, they may
  // stop even within an operator. The step is then abandoned, and the model is as it was after the last
  // update. If `stop` is null, the functions do not stop.
  void set_stop(const std::atomic<bool>* stop) {
    stop_ = stop;
    runner_->set_stop(stop);
    if (joint_.second) joint_.second->set_stop(stop);
  }
  // Sets this rank's vote on whether the run stops after this step. Call this function for each step, before
  // finish_gradients().
  void vote_to_stop(bool wanted) { for_ranks_.votes_to_stop = wanted; }
  // Sets this rank's work in this step, for StepResult::ranks. Call this function for each step, before
  // finish_gradients().
  void report_work(const RankWork& work) { for_ranks_.work = work; }
  // Records the routing of steps with one microbatch, or replaces the routing by recorded routing. `trace`
  // must outlive these steps. If `trace` is null, routing is neither recorded nor replaced.
  void set_routing_trace(const RoutingTrace* trace) { for_blocks_.trace = trace; }
  // Sets the clock of the rank's device, for the times in results. Call this function before the first step,
  // on a rank with memory. Null: no clock.
  void set_timing(const DeviceTiming* timing) { results_.set_timing(timing); }
  // Sets the clock of this rank's schedule (ScheduleRunner::set_clock).
  void set_schedule_clock(engine::ScheduleClock* clock) { runner_->set_clock(clock); }
  // Ends the accumulation of gradients: enqueues the sums over ranks, the gradient norm, and the copies that
  // result() reads.
  void finish_gradients();
  // Returns the result of the earliest step that has called finish_gradients() and whose result was not read.
  // Waits for that step's loss and norm, but not for later work, so the host may read a step after enqueueing
  // the next one.
  StepResult result();
  // Enqueues the update. Waits for the previous step, unless result() has already waited for it.
  void update(std::int64_t step, double learning_rate, double weight_decay);

  // Evaluation without gradients: evaluate() adds the loss of one batch to a sum; evaluation_loss() waits for
  // the device and returns the mean over the batches.
  void begin_evaluation();
  void evaluate(const data::BatchView& batch);
  double evaluation_loss();

  // Repeats the forward passes of the step whose result was returned last. Returns the first operator on this
  // rank that produces a NaN or an infinity: "layers.3.attention". Returns "" if no operator does, in which
  // case the value first appears in the backward pass. The weights must not have changed since that step.
  std::string find_non_finite();
  // Repeats the complete step whose result was returned last, without its update. Returns the first operator
  // on this rank whose backward pass produces a NaN or an infinity: "layers.3.linear (backward pass)", or
  // "layers.3.linear (gradient of layers.3.mlp.down_proj.weight)"; "" if there is none. All ranks must call
  // this function. The weights must not have changed since that step. No further step may follow.
  std::string find_non_finite_gradient();
  // Returns the name of the first parameter of `store` with a NaN or an infinity in this rank's part; "" if
  // there is none.
  std::string find_damaged_weight(engine::ParameterStore& store);

  // Calls `observer` with each weight gradient of this rank in the backward passes of microbatches that are
  // added from now on, before gradients are summed over ranks. After several microbatches, a gradient is
  // the sum over them. If steps are recorded (StepGraphs), does nothing and returns false.
  using GradientObserver = std::function<void(const Tensor& gradient)>;
  bool observe_weight_gradients(const GradientObserver& observer);

  const StepSettings& settings() const { return settings_; }
  const StepGraphs& graphs() const { return graphs_; }
  // Returns why no step can be recorded, regardless of StepSettings::record_after; "" if nothing prevents it.
  std::string why_not_recorded() const;

 private:
  bool drops_out() const {
    return model_.config().lora.training.dropout > 0 || settings_.precision.at_random;
  }
  engine::ScheduleRunner::Settings runner_settings();
  // Resets the sums of losses.
  void begin_losses();
  Outputs forward(engine::Tape& tape, int chunk, std::int64_t microbatch, engine::Value x) override;
  void losses_ready(const std::vector<engine::Value>& losses) override;
  // Returns the losses of the tokens that this rank counts.
  Tensor own_losses(const engine::Value& losses) const;
  void evaluate(const data::BatchView& batch, bool with_mtp);
  // Names the caller of upload_scalars(). begin() and update() have separate ranges of the pinned buffer, so
  // that no pending copy reads the range that is written.
  enum class ScalarsOf : std::uint8_t { kBegin, kUpdate };
  void upload_scalars(ScalarsOf of, std::int64_t step, double learning_rate, double weight_decay);
  // Returns the weight of a microbatch in the mean over the global batch.
  double loss_weight() const;
  double read_scalar(const Tensor& scalar);
  // Returns whether the tensor has a NaN or an infinity.
  bool is_non_finite(const Tensor& tensor);
  // Waits for CountNonFinite, and returns whether it has counted an element.
  bool has_non_finite();
  std::vector<LayerRouting> routing_of(const std::byte* load) const;
  void add_router_losses(const std::byte* losses, std::vector<LayerRouting>& layers) const;
  // Enqueues the copy of this rank's summand of Sums::ranks.
  void upload_for_ranks();
  // Lists the device values that the host reads after a step.
  void list_results();

  engine::Rank& rank_;
  engine::DataParallel& parallel_;
  const LanguageModel& model_;
  Optimizer& optimizer_;
  engine::DelayedScales* scales_;
  StepSettings settings_;
  LossRule* rule_;
  struct Joint {
    TrainingStep* second = nullptr;  // the step of join()
    bool is_second = false;          // whether this step is the second step of another one
  };
  Joint joint_;
  StepInputs inputs_;
  std::unique_ptr<engine::ScheduleRunner> runner_;
  StepGraphs graphs_;
  // Device memory for the inputs of recorded steps: for the first microbatch, and for further microbatches.
  std::array<std::vector<Tensor>, 2> recorded_inputs_;
  Tensor scalars_;  // see turbo/step_scalars.h
  // Accumulators on the device.
  struct Sums {
    Tensor loss;         // fp32 sum
    Tensor ranks;        // fp32: the number of votes to stop; with several ranks, also the work of each rank
    Tensor mtp_loss;     // exists only with multi-token prediction
    Tensor metrics;      // exists only if the rule has metrics
    bool begun = false;  // whether a microbatch of this step, or a batch of this evaluation, was already
                         // added to the sums
  };
  Sums sums_;
  // Values that blocks need in addition to their inputs.
  struct ForBlocks {
    RoutingStep routing;  // exists only with experts
    engine::DropoutSource dropout;
    const RoutingTrace* trace = nullptr;
  };
  ForBlocks for_blocks_;
  struct Evaluation {
    engine::Tape tape;
    bool with_mtp = false;
    std::int64_t batches = 0;
    Tensor non_finite;  // used by find_non_finite() and find_damaged_weight()
    // The index in host_ of the step that find_non_finite_gradient() repeats.
    std::optional<std::size_t> repeated = {};
  };
  Evaluation evaluation_;
  const std::atomic<bool>* stop_ = nullptr;
  // Values that this rank sends to the other ranks together with its loss.
  struct ForRanks {
    bool votes_to_stop = false;
    RankWork work;
  };
  ForRanks for_ranks_;

  // Host memory of a step. Consecutive steps use two such objects in turn (StepResults::turn).
  struct HostSide {
    std::vector<StepInputs::Staging> staging;  // one entry per microbatch, because the device reads the
                                               // entries later
    std::size_t used = 0;                      // number of entries that the step has used
    std::int64_t step = 0;                     // number of the step
    PinnedBuffer scalars;                      // scalars of begin() and update()
    PinnedBuffer ranks;                        // this rank's summand of Sums::ranks
  };
  std::array<HostSide, 2> host_;
  StepResults results_;
};

}  // namespace primus
