// Reports the cost of a model before it is built: FLOPs, and memory for training on one device.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/runtime/rank.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"
#include "lm/optimizer/optimizer_settings.h"
#include "tensor/dtype.h"

namespace primus {

struct TrainingMemory {
  DType compute;   // compute type; with bf16, master weights are fp32
  bool recompute;  // whether every block is recomputed in the backward pass
  engine::MemoryPlan plan;
};

struct ModelReport {
  double flops_per_token = 0;            // training_flops() divided by the number of tokens
  std::vector<TrainingMemory> training;  // memory with fp32 gradients and states, for training in bf16 and in
                                         // fp32
};

// Measures a step of `micro_batch` sequences of `sequence` tokens, without allocating memory or running
// kernels.
ModelReport report_model(const ModelConfig& config, const FamilyRegistry& families, std::int64_t micro_batch,
                         std::int64_t sequence, const OptimizerSettings& optimizer);

}  // namespace primus
