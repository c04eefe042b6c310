// The events of a supervised job that its ranks cannot publish, for alerts (docs/watching.md): the loss of a
// rank or a machine, a restart, and the end after a fault.
//
// Pure functions.
#pragma once

#include <optional>
#include <string>

#include "lm/events/run_event.h"
#include "safe/supervise/recovery/recovery_policy.h"

namespace primus::supervise {

// Returns the event of a fault that no rank can have published, because a rank was killed or hangs. Returns
// nullopt for other ends: the ranks publish their errors themselves.
std::optional<RunEvent> fault_news(const JobEnd& end);
// Returns the event of a lost machine. `text`: which machine, and how it was lost.
RunEvent lost_node_news(std::int64_t step, const std::string& text);
// Returns the event of the first step after a restart: `first_step`, so many seconds after the fault.
RunEvent restart_news(std::int64_t first_step, double seconds, std::int64_t restarts);
// Returns the event of the job's end after a fault that the supervisor does not recover.
RunEvent give_up_news(std::int64_t step, const Action& action);

// Returns the event of another end that no rank reports.
RunEvent ending_news(std::int64_t step, const RunEnding& ending);

}  // namespace primus::supervise
