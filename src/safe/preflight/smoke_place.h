// Where a process of a node smoke test is in its job: which node, and whether it is the node's first process.
// There is no rendezvous; the launchers' variables say it. Free functions without state.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "safe/preflight/machine.h"

namespace primus::preflight {

struct SmokePlace {
  int node = 0;
  bool first_here = true;       // of this node's processes
  bool one_step = false;        // all nodes are one step of Slurm's
  bool named_by_slurm = false;  // else hosts of several nodes may share a name
  std::int64_t nodes = 1;
  std::string run;  // the job and its step; empty: not known

  // The name of the file with the node's report.
  std::string file_of(const std::string& host) const;
};

SmokePlace smoke_place(const Machine& machine);

// The number, 0 or more, in the first of these variables that holds one.
std::optional<std::int64_t> number_of(const Machine& machine, std::initializer_list<const char*> names);

// A host's name without its domain. An address stays whole.
std::string short_name(const std::string& host);
// Whether two names mean one host: one of them may lack the domain.
bool same_host(const std::string& a, const std::string& b);

}  // namespace primus::preflight
