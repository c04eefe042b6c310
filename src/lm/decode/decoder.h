// A model with weights of its own that writes texts (scheduler.h).
//
// All memory is measured and taken once; a token then costs no allocation of device memory. Not thread-safe.
#pragma once

#include <memory>

#include "device/device.h"
#include "engine/rank.h"
#include "lm/decode/inference_model.h"
#include "lm/decode/scheduler.h"

namespace primus {

// The parts of a decoder besides its scheduler, which are made before it.
struct OwnModel {
  // Nobody else uses its rank.
  static ReaderSettings alone(ReaderSettings settings) {
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
  // Weights are zero until they are loaded. `families` is needed only here. Throws Error(kInvalid) for a
  // capacity that the model does not have.
  Decoder(std::unique_ptr<Device> device, const ModelConfig& config, const FamilyRegistry& families,
          const ReaderSettings& settings)
      : OwnModel(std::move(device), config, families, settings),
        DecodeScheduler(OwnModel::rank, parts->model, alone(settings)) {}

  engine::ParameterStore& store() { return parts->store; }
  engine::Rank& rank() { return OwnModel::rank; }
};

}  // namespace primus
