// Pictures of a job's network: switches, nodes and ranks, and the groups of ranks that cross switches.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "base/terminal/terminal.h"
#include "launch/network/node_order.h"

namespace primus::launch {
namespace {

// The coordinates of a rank, as in engine/parallel/mesh.h.
struct Place {
  int tensor, context, data, stage, expert, expert_tensor, copy;
};

Place place_of(const JobMesh& mesh, int world, int rank) {
  const int of_stage = world / mesh.pipeline, within = rank % of_stage;
  return {.tensor = within % mesh.tensor,
          .context = within / mesh.tensor % mesh.context,
          .data = within / (mesh.tensor * mesh.context),
          .stage = rank / of_stage,
          .expert = within / mesh.expert_tensor % mesh.expert,
          .expert_tensor = within % mesh.expert_tensor,
          .copy = within / (mesh.expert_tensor * mesh.expert)};
}

bool divides(const JobMesh& mesh, int world) {
  for (const int axis : {mesh.tensor, mesh.context, mesh.pipeline, mesh.expert, mesh.expert_tensor})
    if (axis < 1 || axis > world) return false;
  if (world % mesh.pipeline != 0) return false;
  const int of_stage = world / mesh.pipeline;
  return of_stage % mesh.tensor == 0 && of_stage / mesh.tensor % mesh.context == 0 &&
         of_stage % mesh.expert == 0 && of_stage / mesh.expert % mesh.expert_tensor == 0;
}

int levels_of(const Network& network) {
  std::size_t levels = 0;
  for (const SwitchPath& path : network.switches) levels = std::max(levels, path.size());
  return static_cast<int>(levels);
}

// Identifies the switch above each node on one level, counted from the lowest. A node without a known switch
// has one of its own.
std::vector<int> switches_of_level(const Network& network, int level) {
  std::map<SwitchPath, int> numbers;
  std::vector<int> result;
  for (std::size_t node = 0; node < network.switches.size(); ++node) {
    SwitchPath path = network.switches[node];
    const auto above = static_cast<std::size_t>(level);
    if (path.size() <= above)
      path = {"", fmt::format("{}", node)};
    else
      path.resize(path.size() - above);
    result.push_back(numbers.emplace(std::move(path), static_cast<int>(numbers.size())).first->second);
  }
  return result;
}

std::string range(int first, int count) {
  return count == 1 ? fmt::format("rank {}", first) : fmt::format("ranks {}..{}", first, first + count - 1);
}

}  // namespace

std::vector<CrossedGroups> crossed_groups(const Network& network, const NodeOrder& order,
                                          const OrderedJob& job) {
  const int world = (static_cast<int>(order.nodes.size()) - job.spares) * job.ranks;
  if (world < 1 || !job.mesh || !divides(*job.mesh, world)) return {};
  using Key = std::vector<int>;
  const std::vector<std::pair<std::string, std::function<Key(const Place&)>>> kinds{
      {"tensor",
       [](const Place& p) {
         return Key{p.context, p.data, p.stage};
       }},
      {"context",
       [](const Place& p) {
         return Key{p.tensor, p.data, p.stage};
       }},
      {"expert",
       [](const Place& p) {
         return Key{p.expert_tensor, p.copy, p.stage};
       }},
      {"data",
       [](const Place& p) {
         return Key{p.tensor, p.context, p.stage};
       }},
      {"pipeline", [](const Place& p) {
         return Key{p.tensor, p.context, p.data};
       }}};
  std::vector<std::vector<int>> levels;
  for (int level = 0; level < levels_of(network); ++level)
    levels.push_back(switches_of_level(network, level));
  std::vector<CrossedGroups> result;
  for (const auto& [kind, key] : kinds) {
    std::map<Key, std::set<int>> groups;  // the nodes of each group
    for (int rank = 0; rank < world; ++rank)
      groups[key(place_of(*job.mesh, world, rank))].insert(
          order.nodes[static_cast<std::size_t>(rank / job.ranks)]);
    const int size = world / static_cast<int>(groups.size());
    if (size == 1) continue;
    CrossedGroups crossed{.kind = kind, .groups = static_cast<int>(groups.size()), .ranks = size};
    crossed.across.resize(levels.size());
    for (const auto& [coordinates, nodes] : groups) {
      crossed.across_hosts += nodes.size() > 1 ? 1 : 0;
      for (std::size_t level = 0; level < levels.size(); ++level) {
        const auto switch_of = [&](int node) { return levels[level][static_cast<std::size_t>(node)]; };
        const bool several = std::ranges::any_of(
            nodes, [&](int node) { return switch_of(node) != switch_of(*nodes.begin()); });
        crossed.across[level] += several ? 1 : 0;
      }
    }
    result.push_back(std::move(crossed));
  }
  return result;
}

std::vector<std::string> drawn_network(const Network& network, const NodeOrder& order,
                                       const OrderedJob& job) {
  std::vector<std::string> lines{fmt::format("network of {}:", printable(network.source))};
  const int places = static_cast<int>(order.nodes.size()) - job.spares;
  const bool has_stages = job.mesh && job.mesh->pipeline > 1 && divides(*job.mesh, places * job.ranks);
  // Nodes below the same switches are shown together, in the order of their places.
  std::map<SwitchPath, std::vector<int>> by_switch;
  for (int place = 0; place < static_cast<int>(order.nodes.size()); ++place)
    by_switch[network.switches[static_cast<std::size_t>(order.nodes[static_cast<std::size_t>(place)])]]
        .push_back(place);
  SwitchPath shown;
  for (const auto& [path, held] : by_switch) {
    std::size_t common = 0;
    while (common < std::min(path.size(), shown.size()) && path[common] == shown[common]) ++common;
    for (std::size_t level = common; level < path.size(); ++level)
      lines.push_back(fmt::format("{:{}}{}", "", 2 + 2 * level, printable(path[level])));
    if (path.empty()) lines.emplace_back("  (switch not known)");
    shown = path;
    for (const int place : held) {
      const int node = order.nodes[static_cast<std::size_t>(place)];
      std::string line = fmt::format("{:{}}{}: node {}", "", 2 + 2 * std::max<std::size_t>(path.size(), 1),
                                     printable(network.nodes[static_cast<std::size_t>(node)]), place);
      if (place != node) line += fmt::format(" (given as {})", node);
      line += place < places ? ", " + range(place * job.ranks, job.ranks) : ", a spare";
      if (has_stages && place < places) {
        const int of_stage = places * job.ranks / job.mesh->pipeline;
        const int first = place * job.ranks / of_stage, last = ((place + 1) * job.ranks - 1) / of_stage;
        line +=
            first == last ? fmt::format(", stage {}", first) : fmt::format(", stages {}..{}", first, last);
      }
      lines.push_back(std::move(line));
    }
  }
  for (const CrossedGroups& crossed : crossed_groups(network, order, job)) {
    std::string line =
        fmt::format("{}: {} group{} of {} ranks, {} across hosts", crossed.kind, crossed.groups,
                    crossed.groups == 1 ? "" : "s", crossed.ranks, crossed.across_hosts);
    for (std::size_t level = 0; level < crossed.across.size(); ++level)
      line += level == 0 ? fmt::format(", {} across switches", crossed.across[level])
                         : fmt::format(", {} across switches of level {}", crossed.across[level], level + 1);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace primus::launch
