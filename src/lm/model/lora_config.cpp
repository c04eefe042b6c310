#include "lm/model/lora_config.h"

#include <algorithm>

namespace primus {

const MatrixAdapters::Matrix* MatrixAdapters::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(matrices, name, {},
                                           [](const Matrix& m) -> std::string_view { return m.name; });
  return at != matrices.end() && at->name == name ? &*at : nullptr;
}

bool MatrixAdapters::saves(std::string_view name) const { return std::ranges::binary_search(saved, name); }

bool LoraConfig::has(std::string_view module) const {
  return dim > 0 && std::ranges::find(modules, module) != modules.end();
}

}  // namespace primus
