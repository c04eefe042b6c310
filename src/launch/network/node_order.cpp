#include "launch/network/node_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

namespace primus::launch {
namespace {

constexpr std::array<std::pair<std::string_view, RankOrder>, 3> kNames{
    {{"given", RankOrder::kGiven}, {"switch", RankOrder::kSwitch}, {"pipeline", RankOrder::kPipeline}}};

// A switch with the nodes of the job directly below it, and the switches below it, in the order of their
// first node.
struct Branch {
  std::vector<int> nodes;
  std::deque<Branch> below;
  std::map<std::string, Branch*, std::less<>> named;
  int size = 0;
  bool has_first = false;  // node 0 is below it

  void add(int node, const SwitchPath& path, std::size_t level) {
    ++size;
    has_first = has_first || node == 0;
    if (level == path.size()) return nodes.push_back(node);
    Branch*& branch = named[path[level]];
    if (!branch) branch = &below.emplace_back();
    branch->add(node, path, level + 1);
  }

  // Appends the nodes to `order`.
  void append_to(std::vector<int>& order) const {
    // Branches of equal size are interchangeable.
    std::map<int, std::deque<const Branch*>, std::greater<>> by_size;
    for (const Branch& branch : below) {
      if (branch.has_first)
        branch.append_to(order);
      else
        by_size[branch.size].push_back(&branch);
    }
    while (!by_size.empty()) {
      // Chooses the branch after which the longest group ends, that is, one whose end is divisible by the
      // largest power of two.
      auto best = by_size.begin();
      const auto end_of = [&](int branch) {
        return std::countr_zero(static_cast<unsigned>(order.size()) + static_cast<unsigned>(branch));
      };
      for (auto at = by_size.begin(); at != by_size.end(); ++at)
        if (end_of(at->first) > end_of(best->first)) best = at;
      best->second.front()->append_to(order);
      best->second.pop_front();
      if (best->second.empty()) by_size.erase(best);
    }
    order.insert(order.end(), nodes.begin(), nodes.end());
  }
};

// Chooses nodes without ranks: nodes whose switch is not known, then nodes of the switches with the fewest
// nodes.
std::vector<bool> chosen_spares(const Network& network, int spares) {
  std::map<SwitchPath, std::vector<int>> by_switch;
  const int count = static_cast<int>(network.switches.size());
  for (int node = 1; node < count; ++node)
    by_switch[network.switches[static_cast<std::size_t>(node)]].push_back(node);
  std::vector<const std::vector<int>*> groups;
  for (const auto& [path, nodes] : by_switch)
    if (!path.empty()) groups.push_back(&nodes);
  std::ranges::stable_sort(groups, [](const auto* a, const auto* b) { return a->size() < b->size(); });
  if (const auto unknown = by_switch.find(SwitchPath()); unknown != by_switch.end())
    groups.insert(groups.begin(), &unknown->second);
  std::vector<bool> is_spare(network.switches.size());
  for (const std::vector<int>* group : groups)
    for (auto node = group->rbegin(); node != group->rend() && spares > 0; ++node, --spares)
      is_spare[static_cast<std::size_t>(*node)] = true;
  return is_spare;
}

// Returns the nodes so that nodes of one switch are consecutive; spares last.
std::vector<int> by_switches(const Network& network, int spares) {
  const std::vector<bool> is_spare = chosen_spares(network, spares);
  Branch root;
  std::vector<int> unknown, last, order;
  for (std::size_t i = 0; i < network.switches.size(); ++i) {
    const int node = static_cast<int>(i);
    const SwitchPath& path = network.switches[i];
    if (is_spare[i])
      last.push_back(node);
    else if (!path.empty())
      root.add(node, path, 0);
    else if (node == 0)
      order.push_back(node);
    else
      unknown.push_back(node);
  }
  root.append_to(order);
  // Node 0 keeps place 0, also below a switch that has further switches.
  std::stable_partition(order.begin(), order.end(), [](int node) { return node == 0; });
  order.insert(order.end(), unknown.begin(), unknown.end());
  order.insert(order.end(), last.begin(), last.end());
  return order;
}

// Spreads `nodes` over the stages: consecutive nodes become the stages of one pipeline.
void spread_over_stages(std::vector<int>& nodes, int places, int stages) {
  const int of_stage = places / stages;
  const std::vector<int> compact(nodes.begin(), nodes.begin() + places);
  for (int i = 0; i < places; ++i)
    nodes[static_cast<std::size_t>(i % stages * of_stage + i / stages)] =
        compact[static_cast<std::size_t>(i)];
}

}  // namespace

std::optional<RankOrder> rank_order_of(std::string_view name) {
  for (const auto& [known, order] : kNames)
    if (known == name) return order;
  return std::nullopt;
}

std::string_view name_of(RankOrder order) {
  return std::ranges::find(kNames, order, &std::pair<std::string_view, RankOrder>::second)->first;
}

int NodeOrder::place_of(int node) const {
  return static_cast<int>(std::ranges::find(nodes, node) - nodes.begin());
}

NodeOrder order_nodes(const Network& network, RankOrder order, const OrderedJob& job) {
  NodeOrder result;
  const int count = static_cast<int>(network.switches.size());
  result.nodes.resize(network.switches.size());
  std::iota(result.nodes.begin(), result.nodes.end(), 0);
  if (order == RankOrder::kGiven || !network.is_known() || job.spares >= count) return result;
  result.nodes = by_switches(network, job.spares);
  result.used = RankOrder::kSwitch;
  if (order != RankOrder::kPipeline) return result;
  const auto note_switch = [&](const std::string& why) {
    result.notes.push_back(fmt::format(
        "--rank-order pipeline: {}, so consecutive nodes share a switch, as with --rank-order switch", why));
  };
  if (!job.mesh) {
    note_switch("the pipeline's stages are not known");
    return result;
  }
  const int places = count - job.spares, stages = job.mesh->pipeline;
  if (stages == 1) {
    note_switch("the job has one stage");
    return result;
  }
  const int world = places * job.ranks;
  const bool stages_in_node = world % stages == 0 && job.ranks % (world / stages) == 0;
  if (!stages_in_node && places % stages != 0) {
    note_switch(fmt::format("{} stages do not divide {} nodes", stages, places));
    return result;
  }
  result.used = RankOrder::kPipeline;
  if (!stages_in_node) spread_over_stages(result.nodes, places, stages);
  return result;
}

}  // namespace primus::launch
