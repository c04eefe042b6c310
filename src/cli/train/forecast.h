// Output of 'train ... --dry-run', as text and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/command.h"
#include "lm/train/trainer.h"

namespace primus::config {
struct TrainerConfig;
}

namespace primus::cli {

// `continued`: the result of note_continuation(). The total time is that of the steps after this step.
nlohmann::json to_json(const TrainingForecast& forecast, std::optional<std::int64_t> continued);
std::string to_text(const TrainingForecast& forecast, const config::TrainerConfig& trainer,
                    std::optional<std::int64_t> continued);

// Returns the iteration from which the run would continue; empty if it would start from scratch, and for
// plans of other hardware, whose run is on another machine. Prints a note about a run that continues: "...
// continues from iteration 6: 14 of its 20 steps are left". Throws the error with which the run would refuse
// its checkpoint (plan_continuation).
std::optional<std::int64_t> note_continuation(const TrainingForecast& forecast,
                                              const FamilyRegistry& families, const Console& console);

}  // namespace primus::cli
