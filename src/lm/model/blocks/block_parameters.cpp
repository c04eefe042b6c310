#include "lm/model/blocks/block_parameters.h"

#include <cmath>

#include "lm/model/family.h"

namespace primus {

using engine::Initializer;

BlockParameters::BlockParameters(const ModelConfig& config, engine::ParameterStore& store, std::int64_t layer,
                                 int chunk)
    : store_(store),
      layer_(layer),
      layers_(config.layers),
      hidden_(config.hidden),
      init_std_(config.init_std),
      chunk_(chunk) {}

engine::Parameter& BlockParameters::add(const std::string& name, Shape shape, Initializer initializer,
                                        std::vector<engine::CheckpointPart> parts) const {
  const std::string at = "layers." + std::to_string(layer_);
  for (engine::CheckpointPart& part : parts) part.name = "model." + at + part.name;
  return declare(store_, chunk_, at + name, shape, initializer, std::move(parts));
}

engine::Parameter& BlockParameters::norm(const std::string& name, const std::string& published) const {
  return add(name, {hidden_}, Initializer::constant(1), {{published, 0, hidden_}});
}

Initializer BlockParameters::matrix() const { return Initializer::normal(init_std_); }

// So that the variance of the residual stream does not grow with depth (GPT-2).
Initializer BlockParameters::into_residual() const {
  return Initializer::normal(init_std_ / std::sqrt(2.0 * static_cast<double>(layers_)));
}

}  // namespace primus
