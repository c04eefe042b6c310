// Parses Megatron-LM's log. Free functions without state.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "lm/events/iteration.h"

namespace primus::backends {

// These functions are the members `iteration` and `evaluation` of Megatron-LM's BackendEntry.
std::optional<IterationRecord> megatron_iteration(std::string_view line);
std::optional<EvaluationRecord> megatron_evaluation(std::string_view line, std::int64_t last);

}  // namespace primus::backends
