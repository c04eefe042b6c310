// The built-in families, and what their files share.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lm/model/family.h"

namespace primus {

Family llama_family();

// Throws Error(kUnsupported) naming `key` when config.json sets it to anything but `neutral` (or null).
void refuse_unless(const nlohmann::json& json, const char* key, const nlohmann::json& neutral);

}  // namespace primus
