// Checks whether a further model of a run (a teacher, a reward model, a value model) can be divided over the
// ranks of the trained model.
#pragma once

#include <cstdint>
#include <string>

#include "config/experiment.h"
#include "lm/model/model_config.h"
#include "lm/train/step/session.h"

namespace primus {

// Throws Error(kInvalid) at a key of the mesh if it cannot. `name`: "teacher '/models/large'". The model
// reads microbatches of `rows` sequences of `sequence` tokens, on `world` ranks.
void check_mesh_of_second_model(const config::Experiment& experiment, int world,
                                const SessionSettings& settings, const std::string& name,
                                const ModelConfig& model, std::int64_t rows, std::int64_t sequence);

}  // namespace primus
