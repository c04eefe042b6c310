#include "safe/preflight/slow_search.h"

#include <fmt/format.h>

#include <algorithm>

#include "safe/preflight/check.h"
#include "safe/preflight/cluster.h"

namespace primus::preflight {

struct SearchFacts {
  const SearchPlan& plan;
  const SearchRates& rates;
  const std::vector<std::string>& names;
  double share;
  std::vector<double> best = {};           // each node's best pair, GB/s; 0: no pairs
  std::vector<int> pairs_of = {};          // number of pairs per node
  double middle = 0, middle_of_pairs = 0;  // medians of `best`, and of all pairs
  std::vector<Finding> links = {};         // slow links between good nodes
};

namespace {

std::string range_of(const Group& group, const std::vector<std::string>& names) {
  const auto name = [&](int node) { return names[static_cast<std::size_t>(node)]; };
  if (group.size() == 2) return fmt::format("{} and {}", name(group[0]), name(group[1]));
  return fmt::format("{} to {} ({} nodes)", name(group.front()), name(group.back()), group.size());
}

// All pairs with a slow node are slow. A good node is slow only in pairs with slow nodes. So a node is judged
// by its best pair, compared with the median of all nodes' best pairs.
void summarise_pairs(SearchFacts& facts) {
  facts.best.resize(facts.names.size());
  facts.pairs_of.resize(facts.names.size());
  std::vector<double> all;
  for (std::size_t r = 0; r < facts.plan.pairs.size(); ++r) {
    for (std::size_t p = 0; p < facts.plan.pairs[r].size(); ++p) {
      const double rate = facts.rates.pairs[r][p];
      all.push_back(rate);
      for (const int node : facts.plan.pairs[r][p]) {
        double& best = facts.best[static_cast<std::size_t>(node)];
        best = std::max(best, rate);
        ++facts.pairs_of[static_cast<std::size_t>(node)];
      }
    }
  }
  facts.middle = median_of(facts.best);
  facts.middle_of_pairs = median_of(std::move(all));
}

void judge_nodes(const CheckInput& in, Judge& judge) {
  const SearchFacts& facts = in.facts<SearchFacts>();
  const double minimum = facts.share * facts.middle;
  for (std::size_t node = 0; node < facts.names.size(); ++node) {
    if (facts.pairs_of[node] == 0 || facts.best[node] >= minimum) continue;
    judge.fail({.where = facts.names[node],
                .measured = fmt::format("{} exchanges at most {:.3g} GB/s with each of {} others",
                                        facts.names[node], facts.best[node], facts.pairs_of[node]),
                .wanted = fmt::format("at least {:.3g} GB/s", minimum),
                .source = fmt::format("{:.0f} % of the median node", 100 * facts.share),
                .fix = "exclude the node, and check its network cards, cables and switch ports"});
  }
  if (judge.silent() && facts.links.empty())
    judge.pass(fmt::format("no slow node among {}: pairs exchange {:.3g} GB/s (median)", facts.names.size(),
                           facts.middle_of_pairs));
}

// Finds slow pairs of nodes that are fast with other nodes.
void find_slow_pairs(const SearchFacts& facts, std::vector<Finding>& links) {
  for (std::size_t r = 0; r < facts.plan.pairs.size(); ++r) {
    for (std::size_t p = 0; p < facts.plan.pairs[r].size(); ++p) {
      const Group& pair = facts.plan.pairs[r][p];
      const double rate = facts.rates.pairs[r][p];
      const double expected = std::min(facts.best[static_cast<std::size_t>(pair[0])],
                                       facts.best[static_cast<std::size_t>(pair[1])]);
      if (rate >= 0.5 * facts.share * expected) continue;
      links.push_back(
          {.where = range_of(pair, facts.names),
           .measured = fmt::format("{} exchange {:.3g} GB/s with each other, and {:.3g} or more with others",
                                   range_of(pair, facts.names), rate, expected),
           .wanted = fmt::format("at least {:.3g} GB/s", 0.5 * facts.share * expected),
           .source = fmt::format("{:.0f} % of the slower one's best", 50 * facts.share),
           .fix = "check the switches between these two nodes"});
    }
  }
}

void find_slow_fabric(const SearchFacts& facts, std::vector<Finding>& links) {
  const SearchPlan& plan = facts.plan;
  for (std::size_t level = 0; level + 1 < plan.halves.size(); ++level) {
    for (std::size_t g = 0; g < plan.halves[level].size(); ++g) {
      const Group& group = plan.halves[level][g];
      // Finds the two halves of the group in the next round, and the rate of the slower half.
      double slower = 0;
      int found = 0;
      for (std::size_t h = 0; h < plan.halves[level + 1].size(); ++h) {
        const Group& half = plan.halves[level + 1][h];
        if (!std::includes(group.begin(), group.end(), half.begin(), half.end())) continue;
        const double rate = facts.rates.halves[level + 1][h];
        slower = found++ == 0 ? rate : std::min(slower, rate);
      }
      const double rate = facts.rates.halves[level][g];
      if (found < 2 || rate >= facts.share * slower) continue;
      links.push_back(
          {.where = range_of(group, facts.names),
           .measured = fmt::format("{}: {:.3g} GB/s together, but each half alone {:.3g} or more",
                                   range_of(group, facts.names), rate, slower),
           .wanted = fmt::format("at least {:.3g} GB/s", facts.share * slower),
           .source = fmt::format("{:.0f} % of the slower half's", 100 * facts.share),
           .fix =
               "check the switches between the two halves for links that are down, or too few links for this "
               "traffic"});
    }
  }
}

void judge_links(const CheckInput& in, Judge& judge) {
  for (const Finding& link : in.facts<SearchFacts>().links) judge.warn(link);
}

}  // namespace

SearchPlan plan_search(int nodes, int max_rounds) {
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
  // Pairs nodes as in a round-robin tournament. One node keeps its position, and all other nodes move to the
  // next position after each round. With an odd number of nodes, one node per round has no partner.
  const int seats = nodes + nodes % 2;
  for (int r = 0; r < std::min(seats - 1, max_rounds); ++r) {
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

extern const Check kSlowNode{.name = "cluster.slow-node",
                             .category = "cluster",
                             .question = "Is one node slow to all others?",
                             .judge = judge_nodes,
                             .may_be_silent = true,
                             .group = "search"};
extern const Check kSlowLinks{.name = "cluster.links",
                              .category = "cluster",
                              .question = "Are links between good nodes slow?",
                              .judge = judge_links,
                              .may_be_silent = true,
                              .group = "search"};

std::vector<Finding> judge_search(const SearchPlan& plan, const SearchRates& rates,
                                  const std::vector<std::string>& names, double share) {
  SearchFacts facts{plan, rates, names, share};
  summarise_pairs(facts);
  std::vector<Finding> links;
  find_slow_pairs(facts, links);
  find_slow_fabric(facts, links);
  facts.links = std::move(links);
  std::vector<Finding> findings;
  judge_group("search", facts, findings);
  return findings;
}

}  // namespace primus::preflight
