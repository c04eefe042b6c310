#include "config/trainer_config.h"

#include <memory>
#include <utility>

#include "config/experiment.h"

namespace primus::config {

const KeyDefaults& key_defaults() {
  static const KeyDefaults defaults{
#define GROUP(id, title)
#define KEY(type, name, fallback, ...) .name = fallback,
#include "config/keys.def"
#undef KEY
#undef GROUP
  };
  return defaults;
}

bool TrainerConfig::operator==(const TrainerConfig&) const = default;

OwnedTrainerConfig::OwnedTrainerConfig() : config_(std::make_unique<TrainerConfig>()) {}
OwnedTrainerConfig::OwnedTrainerConfig(const OwnedTrainerConfig& other)
    : config_(std::make_unique<TrainerConfig>(*other.config_)) {}
OwnedTrainerConfig::OwnedTrainerConfig(OwnedTrainerConfig&& other) noexcept = default;
OwnedTrainerConfig& OwnedTrainerConfig::operator=(const OwnedTrainerConfig& other) {
  return *this = *other.config_;
}
OwnedTrainerConfig& OwnedTrainerConfig::operator=(OwnedTrainerConfig&& other) noexcept = default;
OwnedTrainerConfig& OwnedTrainerConfig::operator=(const TrainerConfig& config) {
  config_ = std::make_unique<TrainerConfig>(config);
  return *this;
}
OwnedTrainerConfig::~OwnedTrainerConfig() = default;
bool OwnedTrainerConfig::operator==(const OwnedTrainerConfig& other) const {
  return *config_ == *other.config_;
}

}  // namespace primus::config
