// How a training step computes: its batch, precision, recomputation and mesh. Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/context_attention.h"
#include "engine/mesh.h"
#include "engine/pipeline_schedule.h"
#include "engine/precision.h"
#include "engine/recompute.h"
#include "engine/tensor_parallel.h"
#include "engine/weight_gradient_queue.h"
#include "tensor/dtype.h"

namespace primus {

// How the stages of a pipeline share a model and its microbatches; the mesh says how many they are.
struct PipelineSettings {
  engine::ScheduleKind schedule = engine::ScheduleKind::kOneForwardOneBackward;
  int chunks = 1;                         // of each stage
  std::vector<std::int64_t> blocks = {};  // of each part; empty: all alike

  engine::PipelineShape shape(const engine::Mesh& mesh) const {
    return {mesh.shape().pipeline, chunks, engine::traits_of(schedule).v_shaped};
  }
};

struct StepSettings {
  std::int64_t micro_batch = 1;   // sequences per microbatch
  std::int64_t sequence = 1;      // tokens per sequence
  std::int64_t microbatches = 1;  // per step, of each data-parallel rank
  bool packed_documents = false;  // batches name their documents (Batch::document_starts)
  engine::RecomputePolicy recompute = {};
  engine::PrecisionRecipe precision = {};
  engine::WeightGradientQueue::Policy weight_gradients = engine::WeightGradientQueue::Policy::kInline;
  std::uint64_t seed = 0;  // of random numbers inside the model
  // For meshes with context ranks.
  engine::ContextParallel::Exchange context_exchange = engine::ContextParallel::Exchange::kRing;
  // For meshes with tensor ranks: whether gathers and scatters overlap with products.
  engine::TensorParallel::Options tensor_overlap = {};
  // For meshes with expert ranks: the exchange of tokens overlaps with shared experts.
  bool expert_overlap = true;
  PipelineSettings pipeline = {};
  DType compute = DType::kF32;  // of activations; TrainingSession sets it
  // Steps before one is recorded and then replayed (lm/train/step_graphs.h), where that can be; 0: never.
  std::int64_t record_after = 0;
};

}  // namespace primus
