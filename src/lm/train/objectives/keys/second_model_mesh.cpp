#include "lm/train/objectives/keys/second_model_mesh.h"

#include <fmt/format.h>

#include "base/text/counted.h"
#include "lm/model/mesh_check.h"
#include "lm/train/settings/training_settings.h"

namespace primus {

void check_mesh_of_second_model(const config::Experiment& experiment, int world,
                                const SessionSettings& settings, const std::string& name,
                                const ModelConfig& model, std::int64_t rows, std::int64_t sequence) {
  engine::MeshShape shape = mesh_shape_of(experiment, world);
  // For a model without experts, expert ranks are data ranks.
  if (model.moe.experts == 0) shape.expert = shape.expert_tensor = 1;
  if (const auto mismatch = mesh_mismatch(model, shape, rows, sequence, settings.step.context_exchange)) {
    throw experiment.error_for(
        mismatch->key,
        fmt::format("the {} is divided over the same ranks as the trained model: {}", name, mismatch->what),
        mismatch->next);
  }
  const std::int64_t parts = std::int64_t{shape.pipeline} * settings.step.pipeline.chunks;
  if (model.layers < parts) {
    throw experiment.error_for("pipeline_model_parallel_size",
                               fmt::format("the {} has {}, fewer than the {} pipeline parts", name,
                                           counted(model.layers, "layer"), parts),
                               "use fewer pipeline stages");
  }
}

}  // namespace primus
