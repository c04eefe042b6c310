// The time limit of a batch job (--time) and the warning before it (--signal), after which the ranks save and
// stop. Internal to launch. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/options/foreign_options.h"

namespace primus::launch {

// Returns the seconds of a valid time in Slurm's format, such as "90" (minutes), "1:30:00" and "2-12";
// nullopt: no limit.
std::optional<std::int64_t> seconds_of(std::string_view time);

// Returns the value of --signal for jobs whose user sets none: a warning 120 seconds before the time limit,
// or earlier in the job if the limit is below 240 seconds.
std::string usual_warning(const std::vector<GivenOption>& options);

// Returns notes on a --signal after which the ranks do not save, or after which --requeue has no effect.
// Throws Error(kInvalid) if the warning would come as soon as the job starts, so that the ranks would stop at
// once.
std::vector<std::string> check_warning(const std::vector<GivenOption>& options);

}  // namespace primus::launch
