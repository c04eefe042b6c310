// The configurations of all golden models: one small model per published family.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "lm/model/outside_families.h"

namespace primus::test {

inline std::vector<NamedConfig> golden_configs() {
  const Path models = Path(PRIMUS_SOURCE_DIR) / "tests/golden/models";
  std::vector<NamedConfig> all;
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    const Path config = entry.path() / "config.json";
    if (!std::filesystem::exists(config)) continue;
    all.push_back({entry.path().filename().string(),
                   read_model_config(read_file(config), config.string(), builtin_families())});
  }
  std::ranges::sort(all, {}, &NamedConfig::name);
  return all;
}

// Returns the golden models that can generate text.
inline std::vector<NamedConfig> writing_golden_configs() {
  std::vector<NamedConfig> all = golden_configs();
  std::erase_if(all, [](const NamedConfig& named) { return named.config.any_keeps(Keeps::kPooled); });
  return all;
}

}  // namespace primus::test
