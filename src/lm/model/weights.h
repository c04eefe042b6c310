// Parameters to and from the published checkpoint layout: names, fused projections, element types.
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

// Whether weights may be without all adapters of the model (LoraConfig), which then keep the values that they
// have.
enum class Adapters : std::uint8_t { kRequired, kMayBeMissing };

// Loads every parameter from a Hugging Face folder (fp32, bf16, fp16 or fp64 tensors) into the master
// weights, and refreshes the working copies. Throws Error naming the first tensor that is missing, misshapen,
// or not used by the model, or a copy of another (CheckpointPart::copies) and not equal to it; a tied model's
// own copy of the head is accepted and ignored.
void load_weights(const SafetensorsFolder& folder, engine::ParameterStore& store, engine::Rank& rank,
                  Adapters adapters = Adapters::kRequired);

// The part of these checks that needs no memory for the model: every tensor that `config` asks for is there,
// in its shape. For before that memory is taken: a config.json may promise anything.
void check_weight_shapes(const SafetensorsFolder& folder, const ModelConfig& config,
                         const FamilyRegistry& families, Adapters adapters = Adapters::kRequired);

// Reads device memory for a checkpoint writer, from any thread, over the rank's copy stream.
class DeviceReader {
 public:
  explicit DeviceReader(engine::Rank& rank) : rank_(rank) {}
  void read(const Tensor& from, std::uint64_t offset, std::span<std::byte> out);

 private:
  engine::Rank& rank_;
  std::mutex mutex_;
};

// What a checkpoint holds, as sources that read the device: the model in the compute type, under Hugging Face
// names. `reader` and the store must outlive the sources.
std::vector<TensorSource> model_sources(const engine::ParameterStore& store, DeviceReader& reader);
// Master weights (bf16 training only: otherwise the model is the master) and moments, as "<state>.<name>".
std::vector<TensorSource> optimizer_sources(const engine::ParameterStore& store, DeviceReader& reader);
// The reverse: everything from a training checkpoint, bit for bit. `optimizer` false takes the weights alone.
void load_checkpoint(const CheckpointReader& checkpoint, engine::ParameterStore& store, engine::Rank& rank,
                     bool optimizer, Adapters adapters = Adapters::kRequired);

}  // namespace primus
