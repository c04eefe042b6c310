#include "launch/container/container.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "launch/container/container_checks.h"
#include "launch/container/container_runtime.h"
#include "launch/container/container_step.h"
#include "launch/node/hardware.h"
#include "launch/node/node.h"
#include "launch/options/assignment.h"
#include "launch/options/place_options.h"
#include "launch/options/tables.h"

namespace primus::launch {
namespace {

// Sets the folder in which the container's command starts.
void set_folder(const ContainerRequest& request, ElsewhereNodes& nodes) {
  const std::vector<GivenOption> options =
      merged(container_options(), request.settings.options, request.given);
  const GivenOption* const given = find_given(options, "workdir");
  if (!given) return;
  nodes.same_folder = false;
  nodes.folder = given->value;
}

Error several_tasks() {
  return unsupported("Slurm starts several tasks per node, but one container runs all ranks of its node",
                     "start one task per node: --ntasks-per-node=1");
}

// Returns the number of GPUs to which --gpus limits the container: "2", "count=2" or "device=0,3"; nullopt:
// no limit.
std::optional<int> gpu_limit(const ContainerRequest& request) {
  const std::vector<GivenOption> options =
      merged(container_options(), request.settings.options, request.given);
  const GivenOption* const given = find_given(options, "gpus");
  std::string text = given ? given->value.value_or("") : "";
  std::erase(text, '"');
  int count = 0;
  if (text.starts_with("device=")) {
    // Drops fields after the devices, such as "capabilities=utility".
    const std::size_t field = text.find('=', 7);
    const std::size_t end = field == std::string::npos ? text.size() : text.rfind(',', field);
    if (end == std::string::npos) return std::nullopt;
    return 1 + static_cast<int>(std::count(text.begin() + 7, text.begin() + static_cast<long>(end), ','));
  }
  const std::size_t begin = text.starts_with("count=") ? 6 : 0;
  std::from_chars(text.data() + begin, text.data() + text.size(), count);
  return count > 0 ? std::optional(count) : std::nullopt;
}

void check_accelerator(const ContainerRequest& request) {
  check_device(request.inner, request.settings.accelerator,
               fmt::format("--accelerator {}", request.settings.accelerator));
  const std::vector<GivenOption> options =
      merged(container_options(), request.settings.options, request.given);
  const GivenOption* const gpus = find_given(options, "gpus");
  if (request.settings.accelerator != "none" || !gpus || gpus->value == "0") return;
  throw invalid(fmt::format("--accelerator is none, but {} gives the container GPUs", written(*gpus)),
                "remove one of them");
}

// Refuses an option with which the container would run another program.
void refuse_other_commands(const ContainerRequest& request) {
  for (const auto* options : {&request.settings.options, &request.given}) {
    if (const GivenOption* const entry = find_given(*options, "entrypoint"))
      throw invalid(fmt::format("{} gives the container another command", written(*entry)),
                    "remove it, and write the command after '--'");
  }
}

// Limits the ranks of a node to the GPUs of the container. Throws Error(kInvalid) if the user has set more
// ranks.
void limit_ranks(int gpus, bool is_set, std::optional<int>& ranks) {
  if (is_set && ranks && *ranks > gpus) {
    throw invalid(fmt::format("the container gets {} GPU{} (--gpus), but the node starts {} ranks", gpus,
                              gpus == 1 ? "" : "s", *ranks),
                  "raise --gpus, or lower GPUS_PER_NODE");
  }
  ranks = std::min(ranks.value_or(gpus), gpus);
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
  check_accelerator(request);
  refuse_other_commands(request);
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
  NodePlace place = find_node(inside, defaults, gpus);
  if (place.task) throw several_tasks();
  const std::optional<int> limit = gpu_limit(request);
  if (limit) {
    std::optional<int> ranks = place.ranks;
    limit_ranks(*limit, inside.setting("GPUS_PER_NODE").has_value(), ranks);
    place.ranks = *ranks;
  }
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
                .same_folder = true,
                .gpus = limit,
                .outer_variables = given};
  set_folder(request, plan.nodes);
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
  check_accelerator(request);
  refuse_other_commands(request);
  // The plan treats the container's variables as variables of this process.
  std::map<std::string, std::string> given;
  with_given(request, surroundings, given);
  check_place_variables(given);
  check_job_variables(given, {.nodes = job.nodes, .gpus = job.gpus});
  ElsewhereNodes nodes = job;
  use_given_master(given, nodes.address, nodes.port);
  if (const auto ranks = given.find("GPUS_PER_NODE"); ranks != given.end())
    nodes.ranks = nodes.given_ranks = parse_ranks("GPUS_PER_NODE", ranks->second);
  nodes.outer_variables = given;
  const std::vector<GivenOption> options =
      merged(container_options(), request.settings.options, request.given);
  std::vector<std::string> notes = notes_on_resources(request, options, job);
  if (const auto limit = gpu_limit(request)) {
    if (nodes.gpus && *limit < *nodes.gpus) {
      notes.push_back(fmt::format(
          "the container gets {} of the {} GPUs that the job requests per node (--gpus); the others "
          "stay idle",
          *limit, *nodes.gpus));
    }
    limit_ranks(*limit, true, nodes.ranks);
    nodes.gpus = std::min(nodes.gpus.value_or(*limit), *limit);
  }
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
  set_folder(request, plan.nodes);
  plan.step =
      container_step(request, surroundings, runtime,
                     {.variables = std::move(variables), .several_nodes = nodes.nodes != 1, .here = false});
  plan.step.where = nodes.nodes == 1 ? "on the node" : "on each node";
  plan.step.notes.insert(plan.step.notes.end(), notes.begin(), notes.end());
  if (request.settings.runtime == "auto") {
    plan.step.notes.emplace_back(
        "with docker, podman or apptainer, depending on the node; for docker the command is");
  }
  return plan;
}

}  // namespace primus::launch
