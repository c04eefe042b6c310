#include "launch/container.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "launch/assignment.h"
#include "launch/container_runtime.h"
#include "launch/container_step.h"
#include "launch/hardware.h"
#include "launch/node.h"
#include "launch/place_options.h"

namespace primus::launch {
namespace {

// Returns whether the container's working folder is the current folder.
bool starts_here(const ContainerRequest& request) {
  const auto names_another = [](const std::vector<GivenOption>& options) {
    return find_given(options, "workdir") != nullptr;
  };
  return !names_another(request.given) && !names_another(request.settings.options);
}

Error several_tasks() {
  return unsupported("Slurm starts several tasks per node, but one container runs all ranks of its node",
                     "start one task per node: --ntasks-per-node=1");
}

// Returns `surroundings` in which variables of --env have the values that --env sets. The node is examined
// with these values.
Surroundings with_given(const ContainerRequest& request, const Surroundings& surroundings,
                        std::map<std::string, std::string>& given) {
  for (const auto* options : {&request.settings.options, &request.given}) {
    for (const GivenOption& option : *options) {
      if (option.name != "env" || !option.value || option.value->find('=') == std::string::npos) continue;
      Assignment assignment = parse_assignment(*option.value, "--env");
      given[assignment.name] = std::move(assignment.value);
    }
  }
  Surroundings result = surroundings;
  result.variable = [&surroundings, &given](const std::string& name) {
    const auto found = given.find(name);
    return found != given.end() ? std::optional<std::string>(found->second) : surroundings.variable(name);
  };
  return result;
}

}  // namespace

ContainerPlan plan_container(const ContainerRequest& request, const Surroundings& surroundings) {
  std::map<std::string, std::string> given;
  const Surroundings inside = with_given(request, surroundings, given);
  std::vector<std::string> found;
  const std::string runtime = find_runtime(request.settings.runtime, surroundings, found);
  Accelerators gpus = find_accelerators(inside);
  const std::string& wanted = request.settings.accelerator;
  if ((wanted == "amd" && gpus.vendor != Vendor::kAmd) ||
      (wanted == "nvidia" && gpus.vendor != Vendor::kNvidia)) {
    throw invalid(fmt::format("this node has no {} GPUs", wanted == "amd" ? "AMD" : "NVIDIA"),
                  "--accelerator auto uses the GPUs that the node has");
  }
  if (wanted == "none") gpus = {};
  NodeDefaults defaults;
  for (const auto& [name, value] : given) defaults.typed.insert(name);
  const NodePlace place = find_node(inside, defaults, gpus);
  if (place.task) throw several_tasks();
  std::map<std::string, std::string> variables{{"NNODES", std::to_string(place.nodes)},
                                               {"NODE_RANK", std::to_string(place.node)},
                                               {"GPUS_PER_NODE", std::to_string(place.ranks)}};
  if (place.nodes > 1) {
    variables["MASTER_ADDR"] = place.master_address;
    variables["MASTER_PORT"] = std::to_string(place.master_port);
  }
  ContainerPlan plan;
  plan.nodes = {.nodes = place.nodes,
                .ranks = place.ranks,
                .tasks = {},
                .address = place.master_address,
                .port = std::to_string(place.master_port),
                .node = std::to_string(place.node),
                .same_folder = starts_here(request)};
  if (given.contains("GPUS_PER_NODE")) plan.nodes.given_ranks = place.ranks;
  plan.step = container_step(
      request, surroundings, runtime,
      {.variables = std::move(variables), .several_nodes = place.nodes > 1, .gpus = std::move(gpus)});
  plan.step.where = "on this node";
  plan.step.notes.insert(plan.step.notes.end(), found.begin(), found.end());
  plan.step.notes.insert(plan.step.notes.end(), place.notes.begin(), place.notes.end());
  const auto job = surroundings.setting("SLURM_JOB_ID");
  if (is_apptainer(runtime)) {
    if (request.clean)
      plan.step.notes.push_back(runtime + " leaves no containers, so there is nothing to clean");
  } else if (request.clean) {
    plan.step.notes.push_back("containers that earlier jobs of Primus left on this node are removed");
    plan.before.push_back(removal(runtime, kLabel));
  } else if (job && surroundings.setting("SLURM_RESTART_COUNT")) {
    // When Slurm ends a job, it kills only the client process of the container. If the container were not
    // removed, it would keep the GPUs.
    plan.step.notes.push_back(
        "containers that this job left on this node before it was queued again are removed");
    plan.before.push_back(removal(runtime, fmt::format("{}={}", kLabel, *job)));
  }
  const auto key = surroundings.setting("DOCKER_LOGIN_KEY");
  if (key && !is_apptainer(runtime)) {
    const auto user = surroundings.setting("DOCKER_LOGIN_USER");
    if (!user) {
      throw invalid("DOCKER_LOGIN_KEY is set, but DOCKER_LOGIN_USER is not", "set both, or none");
    }
    Step login{.name = "login", .where = "on this node", .argv = {runtime, "login"}};
    if (const auto registry = surroundings.setting("DOCKER_LOGIN_REGISTRY")) login.argv.push_back(*registry);
    login.argv.insert(login.argv.end(), {"-u", *user, "--password-stdin"});
    plan.step.notes.push_back("after: " + shell_line(login.argv));
    login.input = *key;
    plan.before.push_back(std::move(login));
  }
  return plan;
}

ContainerPlan plan_container_elsewhere(const ContainerRequest& request, const ElsewhereNodes& job,
                                       const Surroundings& surroundings) {
  if (job.tasks) throw several_tasks();
  // The plan treats the container's variables as variables of this process.
  std::map<std::string, std::string> given;
  with_given(request, surroundings, given);
  check_place_variables(given);
  check_job_variables(given, {.nodes = job.nodes, .gpus = job.gpus});
  ElsewhereNodes nodes = job;
  use_given_master(given, nodes.address, nodes.port);
  if (const auto ranks = given.find("GPUS_PER_NODE"); ranks != given.end())
    nodes.ranks = nodes.given_ranks = parse_ranks("GPUS_PER_NODE", ranks->second);
  const std::string runtime = request.settings.runtime == "auto" ? "docker" : request.settings.runtime;
  std::map<std::string, std::string> variables{
      {"NNODES", nodes.nodes > 0 ? std::to_string(nodes.nodes) : "<nodes of the job>"},
      {"NODE_RANK", nodes.node},
      {"GPUS_PER_NODE", nodes.ranks ? std::to_string(*nodes.ranks) : "<its GPUs>"}};
  if (nodes.nodes != 1) {
    variables["MASTER_ADDR"] = nodes.address;
    variables["MASTER_PORT"] = nodes.port;
  }
  ContainerPlan plan;
  plan.nodes = nodes;
  plan.nodes.same_folder = nodes.same_folder && starts_here(request);
  plan.step =
      container_step(request, surroundings, runtime,
                     {.variables = std::move(variables), .several_nodes = nodes.nodes != 1, .here = false});
  plan.step.where = nodes.nodes == 1 ? "on the node" : "on each node";
  if (request.settings.runtime == "auto") {
    plan.step.notes.emplace_back(
        "with docker, podman or apptainer, depending on the node; for docker the command is");
  }
  return plan;
}

}  // namespace primus::launch
