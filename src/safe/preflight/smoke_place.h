// The place of a smoke-test process in its job: its node, and whether it is the node's first process. Derived
// from the launchers' variables, without a rendezvous. Free functions without state.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "safe/preflight/machine.h"

namespace primus::preflight {

struct SmokePlace {
  int node = 0;
  bool first_here = true;       // first process of its node
  bool one_step = false;        // all nodes belong to one Slurm step
  bool named_by_slurm = false;  // the name is from Slurm and unique; host names may repeat
  std::int64_t nodes = 1;
  std::string run;  // the job and its step; empty: unknown

  // Returns the name of the file for the node's report.
  std::string file_of(const std::string& host) const;
};

SmokePlace smoke_place(const Machine& machine);

// Returns the non-negative number in the first of these variables that contains one.
std::optional<std::int64_t> number_of(const Machine& machine, std::initializer_list<const char*> names);

// Returns a host name without its domain. An IPv4 address is returned unchanged.
std::string short_name(const std::string& host);
// Returns whether two names refer to the same host; either may lack the domain.
bool same_host(const std::string& a, const std::string& b);

}  // namespace primus::preflight
