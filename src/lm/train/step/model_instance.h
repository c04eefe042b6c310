// A language model on a rank: the parameters, the sharding of parameters over the mesh, and the model that
// reads the parameters. A run may have several instances: one trained model, and frozen models. Not
// thread-safe.
#pragma once

#include <memory>

#include "engine/parallel/data_parallel.h"
#include "engine/runtime/parameters.h"
#include "engine/runtime/rank.h"
#include "lm/model/language_model.h"

namespace primus {

class ModelInstance {
 public:
  enum class Role : std::uint8_t {
    kTrained,  // the model has master weights, gradients and the optimizer's states
    kFrozen,   // the model stores its values only in the compute type
  };
  struct Settings {
    ModelConfig model;
    Role role = Role::kTrained;
    ModelParts parts = {};                       // parts of the model that this rank has
    engine::ParameterStore::Layout layout = {};  // layout of the parameters; its member `train` is set
                                                 // according to the role
    engine::DataParallelSettings parallel = {};
    std::int64_t positions = 0;  // number of positions that the rope tables cover
    // kFrozen: the store whose frozen parameters the model uses (engine::allocate_beside); null: none.
    const engine::ParameterStore* base = nullptr;
  };

  // Allocates the model in the rank's persistent arena. Does not initialize weights.
  ModelInstance(engine::Rank& rank, Settings settings, const FamilyRegistry& families);

  Role role() const { return role_; }
  engine::ParameterStore& store() { return store_; }
  const LanguageModel& model() const { return model_; }
  engine::DataParallel& parallel() { return *parallel_; }

 private:
  Role role_;
  engine::ParameterStore store_;
  LanguageModel model_;
  std::unique_ptr<engine::DataParallel> parallel_;
};

}  // namespace primus
