// Output of 'train ... --dry-run', as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lm/train/trainer.h"

namespace primus::config {
struct TrainerConfig;
}

namespace primus::cli {

nlohmann::json to_json(const TrainingForecast& forecast);
std::string to_text(const TrainingForecast& forecast, const config::TrainerConfig& trainer);

}  // namespace primus::cli
