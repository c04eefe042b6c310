#include "launch/direct/direct_network.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "launch/options/assignment.h"
#include "launch/options/place_options.h"

namespace primus::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxVariable = std::size_t{100} << 10;  // Linux allows 128 KiB for one variable

bool is_slurm_step(const Surroundings& surroundings) {
  return surroundings.setting("SLURM_JOB_ID").has_value() && surroundings.setting("SLURM_PROCID").has_value();
}

std::optional<std::string> source_of(const DirectSettings& settings, const Surroundings& surroundings) {
  if (settings.topology) return settings.topology;
  return surroundings.setting(kTopologyVariable);
}

OrderedJob job_of(const DirectCommand& command, int nodes, int ranks, const Variables& given) {
  OrderedJob job{.ranks = ranks, .spares = spare_nodes(command.words)};
  try {
    if (command.outline) job.mesh = command.outline(nodes, ranks, given).mesh;
  } catch (const Error&) {  // the checks of the job report it
  }
  return job;
}

std::string variable_of(const PlacedNodes& placed) {
  std::map<SwitchPath, int> numbers;
  Json switches = Json::array();
  for (const int node : placed.order.nodes) {
    Json path = Json::array();
    SwitchPath above;
    for (const std::string& name : placed.network.switches[static_cast<std::size_t>(node)]) {
      above.push_back(name);
      path.push_back(numbers.emplace(above, static_cast<int>(numbers.size())).first->second);
    }
    switches.push_back(std::move(path));
  }
  Json order{{"order", name_of(placed.order.used)}, {"source", placed.network.source}};
  order["nodes"] = placed.order.nodes;
  order["switches"] = std::move(switches);
  const auto text = [&] { return order.dump(-1, ' ', false, Json::error_handler_t::replace); };
  for (const char* key : {"switches", "nodes"})
    if (text().size() > kMaxVariable) order.erase(key);
  return text();
}

}  // namespace

std::optional<PlacedNodes> place_nodes(const DirectSettings& settings, const DirectCommand& command,
                                       const Variables& given, const Surroundings& surroundings,
                                       NodePlace& place) {
  const std::optional<std::string> named = source_of(settings, surroundings);
  const RankOrder asked = settings.rank_order.value_or(RankOrder::kGiven);
  if (asked == RankOrder::kGiven && !settings.topology) return std::nullopt;
  if (place.nodes == 1) return std::nullopt;  // nothing to order
  const bool slurm = is_slurm_step(surroundings);
  if (!named && !slurm) {
    throw invalid(fmt::format("--rank-order {} needs the network of the nodes", name_of(asked)),
                  "name a file with the nodes and their switches: --topology FILE");
  }
  std::vector<std::string> names = slurm ? nodes_of_step(surroundings) : std::vector<std::string>();
  if (slurm && static_cast<int>(names.size()) != place.nodes) {
    place.notes.push_back(fmt::format("Slurm names {} nodes, but the job has {}: nodes keep their order",
                                      names.size(), place.nodes));
    return std::nullopt;
  }
  if (place.task && asked != RankOrder::kGiven)
    require_equal_tasks(surroundings.setting("SLURM_STEP_TASKS_PER_NODE").value_or(""), place.nodes);
  PlacedNodes placed{.network = find_network(named.value_or("slurm"), names, place.nodes, surroundings,
                                             {.orders = asked != RankOrder::kGiven, .node = place.node}),
                     .order = {},
                     .job = job_of(command, place.nodes, place.ranks, given)};
  placed.order = order_nodes(placed.network, asked, placed.job);
  for (const auto* notes : {&placed.network.notes, &placed.order.notes})
    place.notes.insert(place.notes.end(), notes->begin(), notes->end());
  if (!placed.network.is_known()) return std::nullopt;
  place.node = placed.place = placed.order.place_of(place.node);
  if (place.task && asked != RankOrder::kGiven)
    place.task->rank = place.node * place.task->local_world + place.task->local_rank;
  return placed;
}

void add_network(const PlacedNodes& placed, bool dry_run, Step& step, Plan& plan) {
  step.environment[kNodeOrderVariable] = variable_of(placed);
  step.environment["NODE_RANK"] = std::to_string(placed.place);  // also if the user has set the given number
  if (!dry_run) return;
  for (std::string& line : drawn_network(placed.network, placed.order, placed.job))
    plan.ranks.push_back(std::move(line));
}

void add_network_elsewhere(const DirectSettings& settings, const DirectCommand& command,
                           const ElsewhereNodes& nodes, const Surroundings& surroundings, Plan& plan) {
  const RankOrder asked = settings.rank_order.value_or(RankOrder::kGiven);
  if ((asked == RankOrder::kGiven && !settings.topology) || nodes.nodes == 1 || plan.steps.empty()) return;
  std::vector<std::string>& notes = plan.steps.back().notes;
  const auto outer = nodes.outer_variables.find(kTopologyVariable);
  const std::string source = settings.topology ? *settings.topology
                             : outer != nodes.outer_variables.end()
                                 ? outer->second
                                 : surroundings.setting(kTopologyVariable).value_or("slurm");
  const bool by_number = source.starts_with("slices=");
  if (nodes.nodes == 0 || (nodes.names.empty() && !by_number)) {
    notes.push_back(
        fmt::format("--rank-order {}: the nodes are ordered at the start of the job", name_of(asked)));
    return;
  }
  if (!surroundings.dry_run) return;
  Variables given;
  for (const std::string& text : settings.environment) {
    Assignment assignment = parse_assignment(text, "--env");
    given[assignment.name] = std::move(assignment.value);
  }
  std::optional<int> ranks = nodes.tasks ? nodes.tasks : nodes.ranks ? nodes.ranks : settings.ranks_per_node;
  if (const auto count = given.find("GPUS_PER_NODE"); count != given.end())
    ranks = parse_ranks("GPUS_PER_NODE", count->second);
  PlacedNodes placed{.network = find_network(source, nodes.names, nodes.nodes, surroundings),
                     .order = {},
                     .job = job_of(command, nodes.nodes, ranks.value_or(nodes.gpus.value_or(1)), given)};
  placed.order = order_nodes(placed.network, asked, placed.job);
  for (const auto* more : {&placed.network.notes, &placed.order.notes})
    notes.insert(notes.end(), more->begin(), more->end());
  if (!placed.network.is_known()) return;
  for (std::string& line : drawn_network(placed.network, placed.order, placed.job))
    plan.ranks.push_back(std::move(line));
}

std::optional<Path> network_file(const DirectSettings& settings) {
  if (!settings.topology || *settings.topology == "slurm" || settings.topology->starts_with("slices="))
    return std::nullopt;
  return Path(*settings.topology);
}

}  // namespace primus::launch
