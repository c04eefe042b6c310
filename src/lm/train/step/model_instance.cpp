#include "lm/train/step/model_instance.h"

#include <utility>

namespace primus {

ModelInstance::ModelInstance(engine::Rank& rank, Settings settings, const FamilyRegistry& families)
    : role_(settings.role), store_(&rank.mesh()), model_(settings.model, families, store_, settings.parts) {
  engine::ParameterStore::Layout layout = std::move(settings.layout);
  layout.train = role_ == Role::kTrained;
  store_.allocate(layout, rank.persistent());
  model_.allocate_tables(rank, settings.positions);
  parallel_ = std::make_unique<engine::DataParallel>(rank, store_, settings.parallel);
}

}  // namespace primus
