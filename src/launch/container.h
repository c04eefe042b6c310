// Mode container: Primus within a container of docker, podman or apptainer.
//
// A container gets little by default: the current folder, this program (read-only), the node's GPUs, the
// variables that the job needs, and no privileges: all capabilities are dropped, the user is the caller. RDMA
// devices and the host's network are added where the job has several nodes. Everything else is asked for, by
// options of `docker run`, or at once by Primus's set (--privileged-set). Variables with secrets are handed
// on by their names, so that no command line has their values.
#pragma once

#include <string>
#include <vector>

#include "launch/direct.h"
#include "launch/foreign_options.h"
#include "launch/plan.h"
#include "launch/settings.h"

namespace primus::launch {

// A container in which Primus was not found ends with this code.
inline constexpr int kNoPrimusInside = 42;

struct ContainerRequest {
  ContainerSettings settings;         // of files, with the command line's runtime and so on
  std::vector<GivenOption> given;     // of `docker run`, on the command line
  std::vector<std::string> inner;     // Primus's words within: --debug direct ... -- train ...
  std::vector<std::string> files;     // that are named in them
  std::optional<std::string> writes;  // the log file of the launcher within
  bool clean = false;                 // remove containers that an earlier job left on this node
};

struct ContainerPlan {
  Step step;
  ElsewhereNodes nodes;      // as the launcher within sees them
  std::vector<Step> before;  // what runs before it: the removal of old containers, a login
};

// On this node. Where nobody says which runtime (auto), docker is asked whether its daemon answers; another
// one is taken where it does not, and a note says so. Throws Error: no runtime that works (kDependency), no
// image, devices and folders that are not there.
ContainerPlan plan_container(const ContainerRequest& request, const Surroundings& surroundings);

// On nodes that are not known yet: devices are left to them.
ContainerPlan plan_container_elsewhere(const ContainerRequest& request, const ElsewhereNodes& nodes,
                                       const Surroundings& surroundings);

}  // namespace primus::launch
