// Mode container: Primus inside a container of docker, podman or apptainer.
//
// By default a container gets the current folder, this program (read-only), the node's GPUs, and the
// variables that the job needs. A container gets no privileges: all capabilities are dropped, and the
// container runs as the calling user. RDMA devices and the host's network are added if the job has several
// nodes. For more access, use options of `docker run`, or AMD Primus's set of privileges (--privileged-set).
// Variables with secrets are passed by name, so that command lines do not contain their values.
#pragma once

#include <string>
#include <vector>

#include "launch/direct/direct.h"
#include "launch/options/foreign_options.h"
#include "launch/plan.h"
#include "launch/settings.h"

namespace primus::launch {

// Exit code of a container in which Primus was not found.
inline constexpr int kNoPrimusInside = 42;

struct ContainerRequest {
  // Settings from files. The command line's runtime and similar options override them.
  ContainerSettings settings;
  std::vector<GivenOption> given;     // options of `docker run` from the command line
  std::vector<std::string> inner;     // this program's arguments inside: --debug direct ... -- train ...
  std::vector<std::string> files;     // existing files that `inner` names; they are mounted
  JobOutline outline = {};            // the command inside
  std::optional<std::string> writes;  // log file of the launcher inside the container
  bool clean = false;                 // removes containers that an earlier job left on this node
};

struct ContainerPlan {
  Step step;
  ElsewhereNodes nodes;      // the nodes, for the launcher inside the container
  std::vector<Step> before;  // steps before the container starts: removal of old containers, a login
};

// Plans a container on this node. With runtime auto, docker is used if its daemon answers; otherwise another
// runtime, with a note. Throws Error if no runtime works (kDependency), without an image, or for missing
// devices or folders.
ContainerPlan plan_container(const ContainerRequest& request, const Surroundings& surroundings);

// Plans a container on nodes that are not known yet; the nodes choose the devices.
ContainerPlan plan_container_elsewhere(const ContainerRequest& request, const ElsewhereNodes& nodes,
                                       const Surroundings& surroundings);

}  // namespace primus::launch
