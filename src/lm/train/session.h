// All that trains one model on one rank: parameters, model, optimizer, step. Built twice: on a measuring
// rank, where one step leaves the exact memory plan behind, and then for real. Not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data_parallel.h"
#include "engine/delayed_scales.h"
#include "engine/parameters.h"
#include "engine/rank.h"
#include "lm/generate/token_reader.h"
#include "lm/model/language_model.h"
#include "lm/optimizer/optimizer.h"
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
  bool evaluation = false;           // evaluation passes will run, too
  std::int64_t sample_capacity = 0;  // above 0: the model also writes, texts of up to so many tokens
};

class TrainingSession {
 public:
  // Builds everything on the rank's arenas, weights not yet initialised.
  TrainingSession(engine::Rank& rank, const SessionSettings& settings, const FamilyRegistry& families);

  engine::Rank& rank() { return rank_; }
  engine::ParameterStore& store() { return store_; }
  engine::DataParallel& parallel() { return *parallel_; }
  const LanguageModel& model() const { return model_; }
  Optimizer& optimizer() { return *optimizer_; }
  TrainingStep& step() { return *step_; }
  // Of a precision recipe with delayed scales; else null.
  engine::DelayedScales* scales() { return scales_ ? &*scales_ : nullptr; }
  // With SessionSettings::sample_capacity; reads the weights as they are, and changes nothing that is
  // trained. Ranks that share the model read together (BatchReader).
  TokenReader* reader() { return reader_ ? &*reader_ : nullptr; }

 private:
  engine::Rank& rank_;
  engine::ParameterStore store_;
  LanguageModel model_;
  std::unique_ptr<engine::DataParallel> parallel_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<engine::DelayedScales> scales_;
  std::unique_ptr<TrainingStep> step_;
  std::optional<TokenReader> reader_;
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

// Runs one step (and an evaluation, if asked for) on a measuring rank.
StepMeasurement measure_session(engine::Rank& rank, const SessionSettings& settings,
                                const FamilyRegistry& families);

// measure_session, then reserve, then the session itself.
std::unique_ptr<TrainingSession> open_session(engine::Rank& rank, const SessionSettings& settings,
                                              const FamilyRegistry& families);

}  // namespace primus
