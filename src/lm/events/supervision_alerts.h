// Names of what a supervisor reports to people in place of its ranks (key `alerts`, docs/watching.md). The
// supervisor uses them as RunEvent::cause, and rules as conditions. Constants.
#pragma once

#include <string_view>

namespace primus {

inline constexpr std::string_view kRankLostAlert = "rank_lost";
inline constexpr std::string_view kNodeLostAlert = "node_lost";
inline constexpr std::string_view kRestartedAlert = "restarted";
// The cause continues with the reason: "gave_up: crash loop".
inline constexpr std::string_view kGaveUpAlert = "gave_up";

// This variable of a job's environment has the folder of the run that a supervisor watches. The ranks of this
// run leave the report of a failed end to the supervisor, which may restart the run.
inline constexpr const char* kSupervisedVariable = "PRIMUS_SUPERVISED_RUN";

}  // namespace primus
