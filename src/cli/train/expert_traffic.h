// The part of a forecast about tokens that travel to the experts of other hosts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lm/train/trainer.h"

namespace primus::cli {

// Return the bytes that a rank sends per step in its all-to-alls between hosts and within its host, by two
// hops and by one hop. Empty if the all-to-all has one hop. `stage`: one of the forecast's measurements.
std::string expert_traffic_text(const TrainingForecast& f, const StepMeasurement& stage);
nlohmann::json expert_traffic_json(const TrainingForecast& f, const StepMeasurement& stage);

}  // namespace primus::cli
