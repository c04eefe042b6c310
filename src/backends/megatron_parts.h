// Model parts that Megatron-LM's arguments cannot describe. presets/backends/megatron/with_parts.py adds
// these parts to Megatron-LM's classes before Megatron-LM's program runs.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace primus::config {
struct TrainerConfig;
}

namespace primus::backends {

// Returns the settings of each part that the model of `trainer` needs, under with_parts.py's names; an empty
// object if Megatron-LM's command-line arguments describe the whole model.
nlohmann::ordered_json megatron_parts(const config::TrainerConfig& trainer);

}  // namespace primus::backends
