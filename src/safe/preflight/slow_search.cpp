#include "safe/preflight/slow_search.h"

#include <fmt/format.h>

#include <algorithm>

#include "safe/preflight/cluster.h"

namespace primus::preflight {
namespace {

std::string range_of(const Group& group, const std::vector<std::string>& names) {
  const auto name = [&](int node) { return names[static_cast<std::size_t>(node)]; };
  if (group.size() == 2) return fmt::format("{} and {}", name(group[0]), name(group[1]));
  return fmt::format("{} to {} ({} nodes)", name(group.front()), name(group.back()), group.size());
}

void judge_fabric(const SearchPlan& plan, const SearchRates& rates, const std::vector<std::string>& names,
                  double share, std::vector<Finding>& findings) {
  for (std::size_t level = 0; level + 1 < plan.halves.size(); ++level) {
    for (std::size_t g = 0; g < plan.halves[level].size(); ++g) {
      const Group& group = plan.halves[level][g];
      // Its halves in the next round, and the slower of them.
      double slower = 0;
      int found = 0;
      for (std::size_t h = 0; h < plan.halves[level + 1].size(); ++h) {
        const Group& half = plan.halves[level + 1][h];
        if (!std::includes(group.begin(), group.end(), half.begin(), half.end())) continue;
        const double rate = rates.halves[level + 1][h];
        slower = found++ == 0 ? rate : std::min(slower, rate);
      }
      const double rate = rates.halves[level][g];
      if (found < 2 || rate >= share * slower) continue;
      findings.push_back(
          {.check = "cluster.links",
           .category = "cluster",
           .verdict = Verdict::kWarn,
           .where = range_of(group, names),
           .measured = fmt::format("{}: {:.3g} GB/s together, and each half {:.3g} or more by itself",
                                   range_of(group, names), rate, slower),
           .wanted = fmt::format("at least {:.3g} GB/s", share * slower),
           .source = fmt::format("{:.0f} % of the slower half's", 100 * share),
           .fix = "look at the switches between the two halves: a link that is down, or too few for so much "
                  "traffic"});
    }
  }
}

}  // namespace

SearchPlan plan_search(int nodes, int most_rounds) {
  SearchPlan plan;
  if (nodes < 2) return plan;
  Group all;
  for (int node = 0; node < nodes; ++node) all.push_back(node);
  for (Round round{all}; !round.empty();) {
    plan.halves.push_back(round);
    Round next;
    for (const Group& group : round) {
      if (group.size() < 4) continue;
      const auto middle = group.begin() + static_cast<std::ptrdiff_t>(group.size() / 2);
      next.emplace_back(group.begin(), middle);
      next.emplace_back(middle, group.end());
    }
    round = std::move(next);
  }
  // A tournament: one node stays, the others go round. With an odd number, one rests.
  const int seats = nodes + nodes % 2;
  for (int r = 0; r < std::min(seats - 1, most_rounds); ++r) {
    Round round;
    const auto at = [&](int seat) { return seat == 0 ? 0 : 1 + (seat - 1 + r) % (seats - 1); };
    for (int seat = 0; seat < seats / 2; ++seat) {
      const int a = at(seat), b = at(seats - 1 - seat);
      if (std::max(a, b) < nodes) round.push_back({std::min(a, b), std::max(a, b)});
    }
    plan.pairs.push_back(std::move(round));
  }
  return plan;
}

std::vector<Finding> judge_search(const SearchPlan& plan, const SearchRates& rates,
                                  const std::vector<std::string>& names, double share) {
  std::vector<Finding> findings;
  std::vector<std::vector<double>> of_node(names.size());
  std::vector<double> all;
  for (std::size_t r = 0; r < plan.pairs.size(); ++r) {
    for (std::size_t p = 0; p < plan.pairs[r].size(); ++p) {
      const double rate = rates.pairs[r][p];
      all.push_back(rate);
      for (const int node : plan.pairs[r][p]) of_node[static_cast<std::size_t>(node)].push_back(rate);
    }
  }
  // A slow node makes each of its pairs slow; of a good node's pairs, those with slow nodes. So nodes are
  // judged by their best pair, and the measure is the middle of these.
  std::vector<double> best;
  for (const std::vector<double>& mine : of_node)
    best.push_back(mine.empty() ? 0 : *std::max_element(mine.begin(), mine.end()));
  const double middle = median_of(best);
  for (std::size_t node = 0; node < names.size(); ++node) {
    if (of_node[node].empty() || best[node] >= share * middle) continue;
    findings.push_back({.check = "cluster.slow-node",
                        .category = "cluster",
                        .verdict = Verdict::kFail,
                        .where = names[node],
                        .measured = fmt::format("{} exchanges at most {:.3g} GB/s, with any of {} others",
                                                names[node], best[node], of_node[node].size()),
                        .wanted = fmt::format("at least {:.3g} GB/s", share * middle),
                        .source = fmt::format("{:.0f} % of what the middle node reaches", 100 * share),
                        .fix = "leave the node out, and look at its network cards, cables and switch ports"});
  }
  // Pairs of good nodes that are slow with each other alone.
  for (std::size_t r = 0; r < plan.pairs.size(); ++r) {
    for (std::size_t p = 0; p < plan.pairs[r].size(); ++p) {
      const Group& pair = plan.pairs[r][p];
      const double expected =
          std::min(best[static_cast<std::size_t>(pair[0])], best[static_cast<std::size_t>(pair[1])]);
      if (rates.pairs[r][p] >= 0.5 * share * expected) continue;
      findings.push_back(
          {.check = "cluster.links",
           .category = "cluster",
           .verdict = Verdict::kWarn,
           .where = range_of(pair, names),
           .measured = fmt::format("{} exchange {:.3g} GB/s with each other, and {:.3g} or more with others",
                                   range_of(pair, names), rates.pairs[r][p], expected),
           .wanted = fmt::format("at least {:.3g} GB/s", 0.5 * share * expected),
           .source = fmt::format("{:.0f} % of the slower one's best", 50 * share),
           .fix = "look at the switches between these two nodes"});
    }
  }
  judge_fabric(plan, rates, names, share, findings);
  if (findings.empty()) {
    findings.push_back(
        {.check = "cluster.slow-node",
         .category = "cluster",
         .verdict = Verdict::kPass,
         .measured = fmt::format("no slow node among {}: pairs exchange {:.3g} GB/s in the middle",
                                 names.size(), median_of(all))});
  }
  return findings;
}

}  // namespace primus::preflight
