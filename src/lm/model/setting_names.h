// Maps keys of a config.json to the experiment's settings.
#pragma once

#include <string_view>
#include <vector>

namespace primus {

// Returns the settings that determine a key of config.json or of its rope_scaling, the most probable first;
// empty if there are none.
std::vector<std::string_view> settings_behind(std::string_view config_key);

}  // namespace primus
