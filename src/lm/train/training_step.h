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
#include <memory>
#include <string>
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
#include "lm/train/step_results.h"
#include "lm/train/step_settings.h"

namespace primus {

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
  void set_routing_trace(const RoutingTrace* trace) { for_blocks_.trace = trace; }
  // The clock of the rank's device: results tell how long steps took. Before the first step, on a rank with
  // memory; null: no clock.
  void set_timing(const DeviceTiming* timing) { results_.set_timing(timing); }
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
  Tensor scalars_;  // turbo/step_scalars.h
  // Sums on the device.
  struct Sums {
    Tensor loss, stop_votes;  // fp32
    Tensor mtp_loss;          // of models with multi-token prediction
    Tensor metrics;           // of a rule that has some
    bool begun = false;       // by a microbatch of this step, or a batch of this evaluation
  };
  Sums sums_;
  // Needed by blocks in addition to their inputs.
  struct ForBlocks {
    RoutingStep routing;  // of models with experts
    engine::DropoutSource dropout;
    const RoutingTrace* trace = nullptr;
  };
  ForBlocks for_blocks_;
  struct Evaluation {
    engine::Tape tape;
    bool with_mtp = false;
    std::int64_t batches = 0;
    Tensor non_finite;  // of find_non_finite()
  };
  Evaluation evaluation_;
  const std::atomic<bool>* stop_ = nullptr;
  bool votes_to_stop_ = false;

  // The host's side of a step. There are two, used in turn (StepResults::turn).
  struct HostSide {
    std::vector<StepInputs::Staging> staging;  // by microbatch: a device reads them later
    PinnedBuffer scalars;                      // of begin() and update()
  };
  std::array<HostSide, 2> host_;
  StepResults results_;
};

}  // namespace primus
