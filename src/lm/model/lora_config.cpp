#include "lm/model/lora_config.h"

#include <algorithm>

namespace primus {

bool LoraConfig::has(std::string_view module) const {
  return dim > 0 && std::ranges::find(modules, module) != modules.end();
}

}  // namespace primus
