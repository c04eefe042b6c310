// One optimizer step of a language model: microbatches forward and backward, gradient norm, update. With data
// parallelism each rank takes its microbatches, numbered as Megatron-LM does: local microbatch i of rank r is
// number i * ranks + r of the global batch. Losses and loads are those of all ranks.
//
// The same code measures (on a rank without memory, batches left out) and trains. Host buffers are handed to
// the device without waiting; the host waits once per step, in result(). Not thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/data_parallel.h"
#include "engine/rank.h"
#include "engine/tape.h"
#include "engine/weight_gradient_queue.h"
#include "lm/model/language_model.h"
#include "lm/optimizer/optimizer.h"

namespace primus {

struct StepSettings {
  std::int64_t micro_batch = 1;   // sequences per microbatch
  std::int64_t sequence = 1;      // tokens per sequence
  std::int64_t microbatches = 1;  // per step, on each rank
  bool packed_documents = false;  // batches name their documents (HostBatch::document_starts)
  engine::RecomputePolicy recompute = {};
  engine::WeightGradientQueue::Policy weight_gradients = engine::WeightGradientQueue::Policy::kInline;
  std::uint64_t seed = 0;  // of random numbers inside the model
};

// One microbatch on the host, row-major [micro_batch, sequence].
struct HostBatch {
  std::span<const std::int32_t> tokens, labels;
  std::span<const float> loss_mask;
  // With StepSettings::packed_documents: where each document begins in the micro_batch * sequence tokens, 0
  // first and their number last; a sequence begins a document. Tokens attend within their document.
  std::span<const std::int32_t> document_starts = {};
  std::span<const std::int32_t> positions =
      {};  // [micro_batch, sequence]; empty: 0 to sequence - 1 in each sequence
};

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
  double loss = 0;           // mean over microbatches of the mean over their unmasked tokens
  double gradient_norm = 0;  // before clipping
  int stop_votes = 0;        // ranks that want to stop (TrainingStep::vote_to_stop)
  // Of multi-token prediction, without its scale: mean over depths of what `loss` is for each. Empty: the
  // model has none.
  std::optional<double> mtp_loss;
  std::vector<LayerRouting> routing;  // of the layers that route; empty for dense models
};

class TrainingStep {
 public:
  // Takes its scalars from the rank's persistent arena. The model's tables must reach `sequence` positions.
  TrainingStep(engine::Rank& rank, engine::DataParallel& parallel, const LanguageModel& model,
               Optimizer& optimizer, const StepSettings& settings);

  // `step` counts from 1 and keys random numbers. What the step before enqueued must be over (result()
  // waits).
  void begin(std::int64_t step = 1);
  // Forward and backward of this rank's microbatch `index`, counted from 0. `batch` is copied before this
  // returns; it is not looked at while measuring.
  void microbatch(std::int64_t index, const HostBatch& batch);
  // From here on microbatch() and evaluate() throw engine::StopRequest between two operators once `stop` is
  // set; the step is then left, and what changed the model last is the update before. Null: they do not.
  void set_stop(const std::atomic<bool>* stop) { stop_ = stop; }
  // This rank wants the run to stop after this step; set before finish_gradients(), for each step anew.
  void vote_to_stop(bool wanted) { votes_to_stop_ = wanted; }
  // Of steps with one microbatch: notes down or prescribes its routing. `trace` must outlive them; null: no.
  void set_routing_trace(const RoutingTrace* trace) { trace_ = trace; }
  // Ends accumulation: the gradients of all ranks are complete, and their norm is being computed.
  void finish_gradients();
  // Waits for loss and norm.
  StepResult result();
  void update(std::int64_t step, double learning_rate, double weight_decay);

  // Adds the loss of one batch in evaluation (no gradients) to a sum; evaluation_loss() waits and divides by
  // the count.
  void begin_evaluation();
  void evaluate(const HostBatch& batch);
  double evaluation_loss();

  // Repeats the forward passes of this step's microbatches and looks for the first operator that gives a NaN
  // or an infinity: "layers.3.attention". Empty: none does, it appears in the backward pass.
  std::string find_non_finite();

  const StepSettings& settings() const { return settings_; }

 private:
  struct FurtherStaging {
    std::vector<std::int32_t> tokens, labels;
    std::vector<float> weights;
  };

  // `further`: with the inputs of multi-token prediction.
  ModelInputs upload(engine::Tape& tape, const HostBatch& batch, std::int64_t slot, double weight,
                     bool further);
  FurtherStaging further_tokens(const HostBatch& batch, std::int64_t depth, double weight) const;
  void evaluate(const HostBatch& batch, bool further);
  // Through half `slot` of the pinned buffer: one is for begin(), one for update(), so that neither
  // overwrites what the other's copy may still read.
  void upload_scalars(int slot, std::int64_t step, double learning_rate, double weight_decay);
  std::vector<std::int32_t> first_keys(std::span<const std::int32_t> document_starts) const;
  // Of a microbatch in the mean over the global batch.
  double loss_weight() const;
  double read_scalar(const Tensor& scalar);
  std::vector<LayerRouting> read_routing();

  engine::Rank& rank_;
  engine::DataParallel& parallel_;
  const LanguageModel& model_;
  Optimizer& optimizer_;
  StepSettings settings_;
  engine::WeightGradientQueue queue_;
  engine::Tape tape_;
  Tensor loss_, non_finite_;
  Tensor stop_votes_;  // fp32
  Tensor scalars_;     // turbo/step_scalars.h
  PinnedBuffer host_scalars_;
  Tensor mtp_loss_;      // of models with multi-token prediction
  RoutingStep routing_;  // of models with experts
  const RoutingTrace* trace_ = nullptr;
  const std::atomic<bool>* stop_ = nullptr;
  bool first_microbatch_ = true, votes_to_stop_ = false;
  std::int64_t evaluated_ = 0;

  // Host side of a microbatch's inputs: one slot per microbatch, since a device reads them later.
  struct Staging {
    std::vector<std::int32_t> tokens, labels, positions, first_keys, document_starts, token_numbers;
    std::vector<float> weights;
    std::vector<FurtherStaging> further;  // by depth
    HostBatch batch(std::span<const float> mask) const {
      return {tokens, labels, mask, document_starts, positions};
    }
  };
  std::vector<Staging> staging_;
  std::vector<std::int32_t> positions_;
};

}  // namespace primus
