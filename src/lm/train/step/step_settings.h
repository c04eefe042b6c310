// Settings of a training step: batch, precision, recomputation and mesh. Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/parallel/context_attention.h"
#include "engine/parallel/expert_parallel.h"
#include "engine/parallel/mesh.h"
#include "engine/parallel/pipeline_schedule.h"
#include "engine/parallel/tensor_parallel.h"
#include "engine/runtime/precision.h"
#include "engine/runtime/recompute.h"
#include "engine/runtime/weight_gradient_queue.h"
#include "tensor/dtype.h"

namespace primus {

// How pipeline stages divide a model and its microbatches. The mesh determines the number of stages.
struct PipelineSettings {
  engine::ScheduleKind schedule = engine::ScheduleKind::kOneForwardOneBackward;
  int chunks = 1;                         // number of model parts per stage
  std::vector<std::int64_t> blocks = {};  // number of blocks in each model part; empty: blocks are
                                          // distributed evenly

  engine::PipelineShape shape(const engine::Mesh& mesh) const {
    return {mesh.shape().pipeline, chunks, engine::traits_of(schedule).v_shaped};
  }
};

struct StepSettings {
  std::int64_t micro_batch = 1;   // number of sequences per microbatch
  std::int64_t sequence = 1;      // number of tokens per sequence
  std::int64_t microbatches = 1;  // number of microbatches of each data-parallel rank per step
  bool packed_documents = false;  // whether batches mark document starts (Batch::document_starts)
  engine::RecomputePolicy recompute = {};
  engine::PrecisionRecipe precision = {};
  engine::WeightGradientQueue::Policy weight_gradients = engine::WeightGradientQueue::Policy::kInline;
  std::uint64_t seed = 0;  // seed of random numbers in the model
  // How context ranks exchange keys and values. Used only with context parallelism.
  engine::ContextParallel::Exchange context_exchange = engine::ContextParallel::Exchange::kRing;
  // When gathers and scatters of tensor parallelism overlap with matrix products.
  engine::TensorParallel::Options tensor_overlap = {};
  // The work that overlaps the token exchange of expert parallelism.
  engine::ExpertParallel::Options expert_overlap = {};
  PipelineSettings pipeline = {};
  DType compute = DType::kF32;  // data type of activations; set by TrainingSession
  // Number of steps that run before a step is recorded for replay (lm/train/step/step_graphs.h), if that is
  // possible; 0: no step is recorded.
  std::int64_t record_after = 0;
};

}  // namespace primus
