// A text generator (scheduler.h) that owns its model and weights.
//
// All memory is measured and allocated once; generating a token allocates no device memory. Not thread-safe.
#pragma once

#include <memory>

#include "device/device.h"
#include "engine/runtime/rank.h"
#include "lm/decode/inference_model.h"
#include "lm/decode/scheduler.h"

namespace primus {

// The members of a decoder that must be constructed before its scheduler.
struct OwnModel {
  // Enables replay. This is allowed, because the rank has no other user.
  static ReaderSettings single(ReaderSettings settings) {
    settings.replay = true;
    return settings;
  }
  OwnModel(std::unique_ptr<Device> device, const ModelConfig& config, const FamilyRegistry& families,
           const ReaderSettings& settings);
  engine::Rank rank;
  std::unique_ptr<InferenceModel> parts;
};

class Decoder : private OwnModel, public DecodeScheduler {
 public:
  // Creates the model with zero weights, which the caller then loads. `families` is used only during
  // construction. Throws Error(kInvalid) if the model does not support the capacity.
  Decoder(std::unique_ptr<Device> device, const ModelConfig& config, const FamilyRegistry& families,
          const ReaderSettings& settings)
      : OwnModel(std::move(device), config, families, settings),
        DecodeScheduler(OwnModel::rank, parts->model, single(settings)) {}

  engine::ParameterStore& store() { return parts->store; }
  engine::Rank& rank() { return OwnModel::rank; }
};

}  // namespace primus
