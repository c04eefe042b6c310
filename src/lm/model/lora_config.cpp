#include "lm/model/lora_config.h"

#include <algorithm>
#include <array>

namespace primus {

bool LoraConfig::has(std::string_view module) const {
  return dim > 0 && std::ranges::find(modules, module) != modules.end();
}

std::span<const std::string_view> lora_modules() {
  static constexpr std::array<std::string_view, 4> kModules{"linear_qkv", "linear_proj", "linear_fc1",
                                                            "linear_fc2"};
  return kModules;
}

}  // namespace primus
