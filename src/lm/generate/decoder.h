// A model with weights of its own that reads tokens and says what may come next, of one sequence
// (token_reader.h) or of many (batch_reader.h).
//
// All memory is measured and taken once; a token then costs no allocation. Not thread-safe.
#pragma once

#include <memory>

#include "device/device.h"
#include "engine/rank.h"
#include "lm/generate/inference_model.h"
#include "lm/generate/token_reader.h"

namespace primus {

// What a decoder holds besides its reader, and before it.
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

class Decoder : private OwnModel, public TokenReader {
 public:
  // Weights are zero until they are loaded. `families` is needed only here. Throws Error(kInvalid) for a
  // capacity that the model does not have.
  Decoder(std::unique_ptr<Device> device, const ModelConfig& config, const FamilyRegistry& families,
          const ReaderSettings& settings)
      : OwnModel(std::move(device), config, families, settings),
        TokenReader(OwnModel::rank, parts->model, alone(settings)) {}

  engine::ParameterStore& store() { return parts->store; }
  engine::Rank& rank() { return OwnModel::rank; }
};

// The same for settings.sequences at a time.
class BatchDecoder : private OwnModel, public BatchReader {
 public:
  BatchDecoder(std::unique_ptr<Device> device, const ModelConfig& config, const FamilyRegistry& families,
               const ReaderSettings& settings)
      : OwnModel(std::move(device), config, families, settings),
        BatchReader(OwnModel::rank, parts->model, alone(settings)) {}

  engine::ParameterStore& store() { return parts->store; }
  engine::Rank& rank() { return OwnModel::rank; }
};

}  // namespace primus
