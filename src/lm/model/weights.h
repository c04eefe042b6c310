// Loads and saves parameters in the published checkpoint layout: names, fused projections, element types.
#pragma once

#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/parameters.h"
#include "engine/rank.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// Whether the checkpoint may lack all adapters of the model (LoraConfig). Missing adapters keep their current
// values.
enum class Adapters : std::uint8_t { kRequired, kMayBeMissing };

// Loads every parameter from a Hugging Face folder (fp32, bf16, fp16 or fp64 tensors) into the master weights
// and refreshes the working copies. Throws Error naming the first tensor that is missing, has a wrong shape,
// is not used by the model, or differs from the tensor that it must equal (CheckpointPart::copies). A tied
// model's separate copy of the head is accepted and ignored.
void load_weights(const SafetensorsFolder& folder, engine::ParameterStore& store, engine::Rank& rank,
                  Adapters adapters = Adapters::kRequired);

// Runs the checks that need no memory for the model: every tensor that `config` requires exists and has its
// shape. Call it before allocating the model, because a config.json may claim any size.
void check_weight_shapes(const SafetensorsFolder& folder, const ModelConfig& config,
                         const FamilyRegistry& families, Adapters adapters = Adapters::kRequired);

// Reads device memory for a checkpoint writer over the rank's copy stream. Thread-safe.
class DeviceReader {
 public:
  explicit DeviceReader(engine::Rank& rank) : rank_(rank) {}
  void read(const Tensor& from, std::uint64_t offset, std::span<std::byte> out);

 private:
  engine::Rank& rank_;
  std::mutex mutex_;
};

// Returns the contents of a checkpoint as sources that read from the device: the model in the compute type,
// under Hugging Face names. `reader` and the store must outlive the sources.
std::vector<TensorSource> model_sources(const engine::ParameterStore& store, DeviceReader& reader);
// Returns master weights and moments, named "<state>.<name>". Master weights are included only for bf16
// training; otherwise the model holds them.
std::vector<TensorSource> optimizer_sources(const engine::ParameterStore& store, DeviceReader& reader);
// Loads everything from a training checkpoint, bit for bit. With `optimizer` false, loads only the weights.
void load_checkpoint(const CheckpointReader& checkpoint, engine::ParameterStore& store, engine::Rank& rank,
                     bool optimizer, Adapters adapters = Adapters::kRequired);

}  // namespace primus
