// Parts of a model that none of Megatron-LM's arguments can describe: presets/backends/megatron/with_parts.py
// adds them to its classes before its program runs.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "config/trainer_config.h"

namespace primus::backends {

// The parts that the model of `trainer` needs, by the names of with_parts.py, each with its settings; an
// empty object where arguments suffice.
nlohmann::ordered_json megatron_parts(const config::TrainerConfig& trainer);

}  // namespace primus::backends
