// Loads and saves parameters in the published checkpoint layout: names, fused projections, element types.
#pragma once

#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/runtime/parameters.h"
#include "engine/runtime/rank.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {

// Whether a checkpoint may lack the model's adapters (LoraConfig) and parameters with
// Initializer::if_missing. Adapters keep their current values if all adapters are missing. A missing
// parameter with if_missing keeps its current value.
enum class Adapters : std::uint8_t { kRequired, kMayBeMissing };

// Loads every parameter from a Hugging Face folder (fp32, bf16, fp16 or fp64 tensors) into the master weights
// and refreshes the working copies. Throws an Error that names the first tensor that is missing, has a wrong
// shape, is not used by the model, or differs from its copy (CheckpointPart::copies). A tied model's separate
// copy of the head is accepted and ignored.
void load_weights(const SafetensorsFolder& folder, engine::ParameterStore& store, engine::Rank& rank,
                  Adapters adapters = Adapters::kRequired);

// Makes the checks that need no memory for the model: every tensor that `config` requires must exist with the
// right shape. Call this function before allocating the model, because a config.json may claim any size.
void check_weight_shapes(const SafetensorsFolder& folder, const ModelConfig& config,
                         const FamilyRegistry& families, Adapters adapters = Adapters::kRequired);

// Copies device memory to the host for a checkpoint writer, on the rank's copy stream. Thread-safe.
class DeviceReader {
 public:
  explicit DeviceReader(engine::Rank& rank) : rank_(rank) {}
  void read(const Tensor& from, std::uint64_t offset, std::span<std::byte> out);

 private:
  engine::Rank& rank_;
  std::mutex mutex_;
};

// Returns the model's tensors for a checkpoint, in the compute type and with Hugging Face names. The sources
// read the tensors from the device. `reader` and the store must outlive the sources.
std::vector<TensorSource> model_sources(const engine::ParameterStore& store, DeviceReader& reader);
// Returns the master weights and optimizer states for a checkpoint, named "<state>.<name>". Master weights
// are included only for bf16 training, because fp32 weights are in the model's own tensors.
std::vector<TensorSource> optimizer_sources(const engine::ParameterStore& store, DeviceReader& reader);
// Loads weights and optimizer states from a training checkpoint, bit for bit. If `optimizer` is false, loads
// only the weights.
void load_checkpoint(const CheckpointReader& checkpoint, engine::ParameterStore& store, engine::Rank& rank,
                     bool optimizer, Adapters adapters = Adapters::kRequired);
// Loads a second model with its optimizer states, bit for bit. The checkpoint has the tensors of
// model_sources() and optimizer_sources() among its optimizer's tensors, named "<name>.<tensor>".
void load_second_model(const CheckpointReader& checkpoint, engine::ParameterStore& store, engine::Rank& rank,
                       std::string_view name);

}  // namespace primus
