// The variables of the environment that change how a job runs: which algorithm and network a collective
// takes, how many threads there are, which kernels are chosen. Between the ranks of a job they must agree, on
// one node as well, or collectives hang, and one rank computes otherwise than the rest. Free functions;
// thread-safe.
#pragma once

#include <string_view>
#include <vector>

#include "safe/preflight/finding.h"
#include "safe/preflight/machine.h"

namespace primus::preflight {

inline constexpr std::string_view kEnvironment = "environment";  // the facts' category
inline constexpr std::string_view kNotSet = "not set";           // the value of a variable that is no fact

// Whether ranks are compared in this variable.
bool changes_jobs(std::string_view name);
// Whether it is one of these that gives each rank of a node its own cores or network card: of such a one,
// nodes are compared by their first ranks.
bool places_a_rank(std::string_view name);

// A fact for each such variable that is set, and one with their number. Of a secret it says only that it is
// set.
void add_environment_facts(const Machine& machine, std::vector<Fact>& facts);

// Whether the environment of this process was looked at.
bool tells_environment(const NodeReport& report);

}  // namespace primus::preflight
