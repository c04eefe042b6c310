// Environment variables that change how a job runs: the algorithms and networks of collectives, the number of
// threads, the choice of kernels. All ranks of a job must have the same values, even on one node. Otherwise
// collectives may hang, or a rank may compute different results. Free functions; thread-safe.
#pragma once

#include <string_view>
#include <vector>

#include "safe/preflight/finding.h"
#include "safe/preflight/machine.h"

namespace primus::preflight {

inline constexpr std::string_view kEnvironment = "environment";  // category of the facts
inline constexpr std::string_view kNotSet = "not set";           // shown for a variable without a fact

// Returns whether this variable is compared between ranks.
bool changes_jobs(std::string_view name);
// Returns whether the variable assigns cores or network cards to each rank of a node. Such a variable is
// compared only between the first ranks of the nodes.
bool places_a_rank(std::string_view name);

// Adds one fact with the number of set variables for which changes_jobs() is true, and then a fact for each
// of these variables. For a secret, the fact only records that the variable is set.
void add_environment_facts(const Machine& machine, std::vector<Fact>& facts);

// Returns whether the report contains facts about the environment.
bool has_environment(const NodeReport& report);

}  // namespace primus::preflight
