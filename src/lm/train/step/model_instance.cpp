#include "lm/train/step/model_instance.h"

#include <utility>

#include "engine/runtime/shared_parameters.h"

namespace primus {

ModelInstance::ModelInstance(engine::Rank& rank, Settings settings, const FamilyRegistry& families)
    : role_(settings.role), store_(&rank.mesh()), model_(settings.model, families, store_, settings.parts) {
  engine::ParameterStore::Layout layout = std::move(settings.layout);
  layout.train = role_ == Role::kTrained;
  if (settings.base) {
    layout.sharding = engine::Sharding::kNone;  // a frozen model has no states and no gradients
    engine::allocate_beside(store_, *settings.base, layout, rank.persistent(), engine::Shared::kFrozen);
  } else {
    store_.allocate(layout, rank.persistent());
  }
  model_.allocate_tables(rank, settings.positions);
  parallel_ = std::make_unique<engine::DataParallel>(rank, store_, settings.parallel);
}

}  // namespace primus
