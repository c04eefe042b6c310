// Output of 'train ... --dry-run', as text and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lm/train/trainer.h"

namespace primus::config {
struct TrainerConfig;
}

namespace primus::cli {

// `continued`: the result of continued_step(). The total time is that of the steps after this step.
nlohmann::json to_json(const TrainingForecast& forecast, std::optional<std::int64_t> continued);
std::string to_text(const TrainingForecast& forecast, const config::TrainerConfig& trainer,
                    std::optional<std::int64_t> continued);

// Returns the iteration from which the run would continue; empty if it would start from scratch, and for
// plans of other hardware, whose run is on another machine. Throws the error with which the run would refuse
// its checkpoint (continued_iteration).
std::optional<std::int64_t> continued_step(const TrainingForecast& forecast, const FamilyRegistry& families);
// Returns a note about a run that continues from a checkpoint: "... continues from iteration 6: 14 of its 20
// steps are left".
std::string describe_continuation(const TrainingForecast& forecast, std::int64_t iteration);

}  // namespace primus::cli
