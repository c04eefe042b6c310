#include "safe/preflight/smoke_place.h"

#include <fmt/format.h>

#include <algorithm>

#include "launch/node/node.h"

namespace primus::preflight {

std::string SmokePlace::file_of(const std::string& host) const {
  return named_by_slurm || nodes < 2 ? host + ".json" : fmt::format("{}.node-{}.json", host, node);
}

// Reads Slurm's node number first, unless the primus launcher started the step: the launcher's node numbers
// may differ from Slurm's.
SmokePlace smoke_place(const Machine& machine) {
  SmokePlace place;
  const auto job = machine.variable("SLURM_JOB_ID"), step = machine.variable("SLURM_STEP_ID");
  const bool in_step = job && step && number_of(machine, {"SLURM_NODEID"});
  if (in_step) place.run = fmt::format("{}.{}", *job, *step);
  const bool launched = in_step && machine.variable(launch::kLaunchedStep) == place.run;
  place.named_by_slurm = job && (machine.variable("SLURMD_NODENAME") || in_step);
  const auto local = in_step ? number_of(machine, {"SLURM_LOCALID"})
                             : number_of(machine, {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"});
  place.first_here = local.value_or(0) == 0;
  const std::int64_t per_node =
      std::max<std::int64_t>(number_of(machine, {"OMPI_COMM_WORLD_LOCAL_SIZE"}).value_or(1), 1);
  auto node = in_step && !launched ? number_of(machine, {"SLURM_NODEID"})
                                   : number_of(machine, {"NODE_RANK", "SLURM_NODEID", "GROUP_RANK"});
  auto nodes = number_of(machine, {"SLURM_NNODES", "SLURM_JOB_NUM_NODES", "NNODES"});
  if (const auto rank = number_of(machine, {"OMPI_COMM_WORLD_RANK"}); rank && !node) node = *rank / per_node;
  if (const auto world = number_of(machine, {"OMPI_COMM_WORLD_SIZE"}); world && !nodes)
    nodes = *world / per_node;
  place.node = static_cast<int>(std::min<std::int64_t>(node.value_or(0), 1 << 20));
  place.nodes = std::max<std::int64_t>(nodes.value_or(1), 1);
  place.one_step = in_step && place.nodes > 1;
  return place;
}

std::optional<std::int64_t> number_of(const Machine& machine, std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    const auto text = machine.variable(name);
    const auto value = text ? leading_number(*text) : std::nullopt;
    if (value && *value >= 0) return value;
  }
  return std::nullopt;
}

std::string short_name(const std::string& host) {
  const bool address = host.find_first_not_of("0123456789.") == std::string::npos;
  return address ? host : host.substr(0, host.find('.'));
}

bool same_host(const std::string& a, const std::string& b) {
  return a == b || short_name(a) == b || a == short_name(b);
}

}  // namespace primus::preflight
