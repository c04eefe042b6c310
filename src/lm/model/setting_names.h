// What an experiment calls the things that config.json says of a model.
#pragma once

#include <string_view>
#include <vector>

namespace primus {

// The experiment's keys that a key of config.json, or of rope_scaling in it, comes from, the likeliest first;
// empty: none.
std::vector<std::string_view> settings_behind(std::string_view config_key);

}  // namespace primus
