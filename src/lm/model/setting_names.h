// Maps keys of a config.json to settings of an experiment.
#pragma once

#include <string_view>
#include <vector>

namespace primus {

// Returns the settings that determine a key of config.json or of its rope_scaling, the most probable setting
// first. Empty if no setting does.
std::vector<std::string_view> settings_behind(std::string_view config_key);

}  // namespace primus
