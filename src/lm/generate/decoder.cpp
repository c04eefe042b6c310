#include "lm/generate/decoder.h"

namespace primus {

OwnModel::Parts::Parts(engine::Rank& rank, const ModelConfig& config, const FamilyRegistry& families,
                       const ReaderSettings& settings)
    : model(config, families, store) {
  store.allocate({.compute = settings.compute, .train = false}, rank.persistent());
  model.allocate_tables(rank, settings.capacity);
}

OwnModel::OwnModel(std::unique_ptr<Device> device, const ModelConfig& config, const FamilyRegistry& families,
                   const ReaderSettings& settings)
    : rank(std::move(device)) {
  {
    const Parts measured(rank, config, families, settings);
    BatchReader(rank, measured.model, settings).measure();
  }
  rank.reserve(rank.high_water());
  parts = std::make_unique<Parts>(rank, config, families, settings);
}

}  // namespace primus
