#include "lm/decode/decoder.h"

namespace primus {

OwnModel::OwnModel(std::unique_ptr<Device> device, const ModelConfig& config, const FamilyRegistry& families,
                   const ReaderSettings& settings)
    : rank(std::move(device)),
      parts(measured_model(
          rank, config, families, settings.compute, settings.capacity,
          [&](const InferenceModel& measured) { BatchReader(rank, measured.model, settings).measure(); })) {}

}  // namespace primus
