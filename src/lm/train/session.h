// All that trains a model on one rank: the model, those that are frozen beside it, optimizer, step. Built
// twice: on a measuring rank, where one step leaves the exact memory plan of all of it behind, and then for
// real. Not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/data_parallel.h"
#include "engine/delayed_scales.h"
#include "engine/parameters.h"
#include "engine/rank.h"
#include "lm/decode/scheduler.h"
#include "lm/model/language_model.h"
#include "lm/optimizer/optimizer.h"
#include "lm/train/loss_rule.h"
#include "lm/train/model_instance.h"
#include "lm/train/training_step.h"

namespace primus {

struct SessionSettings {
  ModelConfig model;
  DType compute = DType::kF32;    // fp32 or bf16
  DType gradients = DType::kF32;  // ParameterStore::Layout::gradients
  bool decay_head_norms = false;  // likewise
  StepSettings step;
  OptimizerSettings optimizer;
  // Of the rank's mesh; of no effect on one rank.
  engine::Sharding sharding = engine::Sharding::kNone;
  bool reduce_each_microbatch = false;
  engine::DataParallelSettings parallel;
  bool evaluation = false;            // evaluation passes will run, too
  std::int64_t sample_capacity = 0;   // above 0: the model also writes, texts of up to so many tokens,
  std::int64_t sample_sequences = 1;  // so many of them together
  MakeLossRule loss_rule = {};        // empty: the mean of -ln p(label)
};

class TrainingSession {
 public:
  // Builds everything on the rank's arenas, weights not yet initialised.
  TrainingSession(engine::Rank& rank, const SessionSettings& settings, const FamilyRegistry& families);

  engine::Rank& rank() { return rank_; }
  // The model that is trained.
  ModelInstance& trained() { return trained_; }
  engine::ParameterStore& store() { return trained_.store(); }
  engine::DataParallel& parallel() { return trained_.parallel(); }
  const LanguageModel& model() const { return trained_.model(); }
  // A frozen model of the loss rule, by name (FrozenModel). Its weights are the caller's to load.
  ModelInstance& frozen(std::string_view name);
  const SessionSettings& settings() const { return settings_; }
  Optimizer& optimizer() { return *optimizer_; }
  TrainingStep& step() { return *step_; }
  // Null without SessionSettings::loss_rule. before_step() of a rule runs by way of the session.
  LossRule* rule() { return rule_.get(); }
  // Before TrainingStep::begin(), where there is a rule: its work before a step, with the step's batches.
  void before_step(std::int64_t step, std::span<data::Batch> batches);
  // Of a precision recipe with delayed scales; else null.
  engine::DelayedScales* scales() { return scales_ ? &*scales_ : nullptr; }
  // With SessionSettings::sample_capacity: what a decoder of these weights is made with; else nothing.
  const std::optional<ReaderSettings>& decoding() const { return decoding_; }
  // Writes with the weights as they are, and changes nothing that is trained. Its memory is that of steps and
  // evaluations, of which none may run as long as it exists. Ranks that share the model write together
  // (DecodeScheduler).
  std::unique_ptr<DecodeScheduler> make_decoder(DecodeScheduler::Agree agree = {});

 private:
  // A model of the session: the trained one, or frozen beside it.
  ModelInstance::Settings instance_settings(const ModelConfig& model, ModelInstance::Role role) const;

  engine::Rank& rank_;
  const SessionSettings settings_;
  std::unique_ptr<LossRule> rule_;
  ModelInstance trained_;
  std::vector<std::pair<std::string, std::unique_ptr<ModelInstance>>> frozen_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<engine::DelayedScales> scales_;
  std::unique_ptr<TrainingStep> step_;
  std::optional<ReaderSettings> decoding_;
};

// What a rank sends in a step to the other ranks of a group, by kind of collective.
struct GroupTraffic {
  std::string group;  // "tensor", "data", ...
  int ranks = 1;
  comm::Traffic traffic;
};

// What a step does, as counted while measuring it.
struct StepMeasurement {
  engine::MemoryPlan memory;
  turbo::Meter kernels;                          // calls and FLOPs by kernel, recomputation included
  std::int64_t parameters = 0;                   // of the whole model
  std::int64_t trained_parameters = 0;           // of those; the others are frozen
  double saved_share = 1;                        // of which this rank writes into a checkpoint
  std::vector<GroupTraffic> communication = {};  // of groups in which something is sent
  // Of the optimizer, on all ranks (ParameterStore::state_bytes), and of fp8's delayed scales.
  std::int64_t state_bytes = 0;
  // Of settings with StepSettings::record_after: why no step is recorded all the same. Empty: steps are.
  std::string why_not_recorded = {};
};

// Runs one step (and an evaluation and the passes of a decoder, if asked for) on a measuring rank.
StepMeasurement measure_session(engine::Rank& rank, const SessionSettings& settings,
                                const FamilyRegistry& families);

// measure_session, then reserve, then the session itself.
std::unique_ptr<TrainingSession> open_session(engine::Rank& rank, const SessionSettings& settings,
                                              const FamilyRegistry& families);

}  // namespace primus
