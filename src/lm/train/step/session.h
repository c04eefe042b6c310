// Everything that trains a model on one rank: the model, frozen models, the optimizer, and the step. A
// session is built twice: first on a measuring rank, where one step determines the exact memory plan, and
// then on a rank with that memory. Not thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/parallel/data_parallel.h"
#include "engine/runtime/delayed_scales.h"
#include "engine/runtime/parameters.h"
#include "engine/runtime/rank.h"
#include "lm/decode/scheduler.h"
#include "lm/model/language_model.h"
#include "lm/optimizer/optimizer.h"
#include "lm/train/step/loss_rule.h"
#include "lm/train/step/model_instance.h"
#include "lm/train/step/training_step.h"

namespace primus {

struct SessionSettings {
  ModelConfig model;
  DType compute = DType::kF32;    // compute type: fp32 or bf16
  DType gradients = DType::kF32;  // type of gradients (ParameterStore::Layout::gradients)
  bool decay_head_norms = false;  // see ParameterStore::Layout
  StepSettings step;
  OptimizerSettings optimizer;
  // Sharding over data-parallel ranks; has no effect on a single rank.
  engine::Sharding sharding = engine::Sharding::kNone;
  bool reduce_each_microbatch = false;
  engine::DataParallelSettings parallel;
  bool evaluation = false;            // whether evaluations will run
  std::int64_t sample_capacity = 0;   // max tokens of a sample text; 0: no sample texts are generated
  std::int64_t sample_sequences = 1;  // number of sample texts that are generated concurrently
  // Max number of tokens that a decoder reads in one pass. The default is small because prompts of sample
  // texts are short. Passes are smaller if the device requires it (lm/decode/pass_tokens.h).
  std::int64_t sample_pass_tokens = 32;
  // With a larger value of sample_pass_tokens, measure_session() chooses a number from this one up to
  // sample_pass_tokens. Passes do not increase the memory of the session, unless passes with this number of
  // tokens already do.
  static constexpr std::int64_t kSmallestSamplePass = 512;
  MakeLossRule loss_rule = {};  // if null, the loss is the mean of -ln p(label)
  // Number of microbatches of each data-parallel rank that a step is expected to fill, if the loss rule fills
  // fewer than all. Only for estimates of work and time.
  std::optional<std::int64_t> filled_microbatches = {};
};

class TrainingSession {
 public:
  // Builds the session in the arenas of the rank. Does not initialize weights.
  TrainingSession(engine::Rank& rank, const SessionSettings& settings, const FamilyRegistry& families);

  engine::Rank& rank() { return rank_; }
  // Returns the trained model.
  ModelInstance& trained() { return trained_; }
  engine::ParameterStore& store() { return trained_.store(); }
  engine::DataParallel& parallel() { return trained_.parallel(); }
  const LanguageModel& model() const { return trained_.model(); }
  // Returns the frozen model with this name (FrozenModel::name). The caller loads its weights.
  ModelInstance& frozen(std::string_view name);
  bool has_frozen(std::string_view name) const;
  // Returns the second model of the loss rule (LossRule::second_model), which must exist.
  ModelInstance& second();
  bool has_second() const { return second_ != nullptr; }
  const SessionSettings& settings() const { return settings_; }
  Optimizer& optimizer() { return *optimizer_; }
  TrainingStep& step() { return *step_; }
  // Returns the loss rule; null if SessionSettings::loss_rule is not set. Call before_step() below instead of
  // the rule's function of the same name.
  LossRule* rule() { return rule_.get(); }
  // If there is a loss rule, runs its work before a step. `batches` are this rank's batches of the step. Call
  // this function before TrainingStep::begin(). Returns the number of microbatches of the step: the others
  // have no losses and are skipped.
  std::int64_t before_step(std::int64_t step, std::span<data::Batch> batches);
  // Sets the flag of a request to stop the run. A loss rule then ends long work in before_step() by
  // StopRequest, on all ranks if the flag is set on any of them. On one rank, the functions of step() stop,
  // too (TrainingStep::set_stop). If `stop` is null, nothing stops.
  void set_stop(const std::atomic<bool>* stop);
  // Returns the flag of set_stop(); null if nothing stops.
  const std::atomic<bool>* stop() const { return stop_; }
  // Returns whether this rank is asked to stop.
  bool stop_requested() const { return stop_ && stop_->load(std::memory_order_relaxed); }
  // Returns the delayed scales; null if the precision recipe has no delayed scales.
  engine::DelayedScales* scales() { return scales_ ? &*scales_ : nullptr; }
  // Returns the settings of a decoder for these weights; empty if SessionSettings::sample_capacity is 0.
  const std::optional<ReaderSettings>& decoding() const { return decoding_; }
  // Returns a decoder that generates with the current weights and changes nothing in training. The decoder
  // shares memory with steps and evaluations, so no step or evaluation may run while the decoder exists.
  // Ranks that share the model generate together (DecodeScheduler).
  std::unique_ptr<DecodeScheduler> make_decoder(DecodeScheduler::Agree agree = {});

 private:
  // The second model of the loss rule, and what trains it.
  struct Second {
    Second(engine::Rank& rank, ModelInstance::Settings model, const FamilyRegistry& families,
           const OptimizerSettings& optimizer, const StepSettings& step, LossRule* rule);

    ModelInstance instance;
    Optimizer optimizer;
    TrainingStep step;
  };

  // Returns the settings of the trained model or of a frozen one. `positions`: FrozenModel::positions.
  ModelInstance::Settings instance_settings(const ModelConfig& model, ModelInstance::Role role,
                                            std::int64_t positions = 0) const;

  engine::Rank& rank_;
  const SessionSettings settings_;
  std::unique_ptr<LossRule> rule_;
  ModelInstance trained_;
  std::vector<std::pair<std::string, std::unique_ptr<ModelInstance>>> frozen_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<engine::DelayedScales> scales_;
  std::unique_ptr<TrainingStep> step_;
  std::unique_ptr<Second> second_;
  std::optional<ReaderSettings> decoding_;
  const std::atomic<bool>* stop_ = nullptr;
};

// How much data a rank sends to one group of ranks in one step, by kind of collective.
struct GroupTraffic {
  std::string group;  // name of the group: "tensor", "data", ...
  int ranks = 1;
  comm::Traffic traffic;
};

// Memory, work and traffic of a step, as counted while measuring it. The memory is sufficient for all
// microbatches; work and traffic are those of `microbatches`.
struct StepMeasurement {
  engine::MemoryPlan memory;
  turbo::Meter kernels;                 // number of calls and FLOPs of each kernel, including recomputation
  std::int64_t parameters = 0;          // number of parameters of the complete model
  std::int64_t trained_parameters = 0;  // number of trained parameters; the others are frozen
  std::int64_t second_parameters = 0;   // number of parameters of the second model (LossRule::second_model)
  engine::FourBitTotals four_bit = {};  // the parameters of the trained model in 4 bits
  double saved_share = 1;               // fraction of `parameters` that this rank writes into a checkpoint
  std::vector<GroupTraffic> communication = {};  // traffic of each group that has traffic
  // Bytes of optimizer states on all ranks together (ParameterStore::state_bytes), of delayed FP8 scales, and
  // of the second model with its states.
  std::int64_t state_bytes = 0;
  // Why steps are not recorded although StepSettings::record_after requests a recording; empty if steps are
  // recorded.
  std::string why_not_recorded = {};
  std::int64_t microbatches = 1;  // number of microbatches that a step is expected to compute
  // SessionSettings::sample_pass_tokens of a session with this memory; 0: the session has no decoder. All
  // ranks that generate together must use the same number.
  std::int64_t sample_pass_tokens = 0;
};

// Runs one step on a measuring rank, and an evaluation and passes of the decoder if the settings request
// them. A session with this memory needs StepMeasurement::sample_pass_tokens in its settings.
StepMeasurement measure_session(engine::Rank& rank, const SessionSettings& settings,
                                const FamilyRegistry& families);

// Runs measure_session(), reserves the memory that it determined, and builds the session.
std::unique_ptr<TrainingSession> open_session(engine::Rank& rank, const SessionSettings& settings,
                                              const FamilyRegistry& families);

}  // namespace primus
