#include "safe/preflight/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "safe/preflight/check.h"
#include "safe/preflight/environment_facts.h"

namespace primus::preflight {

struct ClusterFacts {
  const std::vector<NodeReport>& nodes;
  const ClusterOptions& options;
};

namespace {

// Joins names for a sentence; lists at most eight.
std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMax = 8;
  if (names.size() <= kMax) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kMax, ", "),
                     names.size() - kMax);
}

std::string name_of(const NodeReport& report) {
  return fmt::format("{} (rank {})", report.host, report.rank);
}

std::string fix_of_drift(const std::string& category, const std::string& name) {
  if (category == "performance")
    return "drain the node: a device with a different checksum computes wrong results";
  if (category == kEnvironment)
    return fmt::format(
        "use one value on all ranks ('--env {}=VALUE' of primus direct and container), or unset it where the "
        "job starts; look for shell profiles and settings files (.primus.yaml) that differ between "
        "nodes, "
        "and for scripts that set it from the task number",
        name);
  return "make these nodes equal to the others, or exclude them";
}

void judge_drift(const CheckInput& in, Judge& judge) {
  const std::vector<NodeReport>& nodes = in.facts<ClusterFacts>().nodes;
  struct Value {
    std::vector<std::string> who;
  };
  struct Compared {
    Verdict drift = Verdict::kPass;
    std::map<std::string, Value> values;
    // Several processes of a machine report equal facts. A fact is therefore counted once per machine or
    // device. Only facts about environment variables are counted once per process.
    std::set<std::tuple<std::string, int, std::string>> seen;
    std::set<std::pair<std::string, int>> machines;
    bool devices = false;
    bool ranks() const { return !devices && seen.size() > machines.size(); }
    bool is_first_word_of(const NodeReport& node, const std::string& about) {
      machines.emplace(node.host, node.node);
      return seen.emplace(node.host, node.node, about).second;
    }
  };
  const auto speaks_about = [](const NodeReport& node, const std::string& category, const std::string& name,
                               const std::string& where) {
    return category == kEnvironment && !places_a_rank(name) ? fmt::format("rank {}", node.rank) : where;
  };
  std::map<std::pair<std::string, std::string>, Compared> facts;
  for (const NodeReport& node : nodes) {
    for (const Fact& fact : node.facts) {
      if (fact.drift < Verdict::kWarn) continue;
      Compared& compared = facts[{fact.category, fact.name}];
      if (!compared.is_first_word_of(node, speaks_about(node, fact.category, fact.name, fact.where)))
        continue;
      compared.drift = std::max(compared.drift, fact.drift);
      compared.devices |= !fact.where.empty();
      compared.values[fact.value].who.push_back(
          fact.where.empty() ? name_of(node) : fmt::format("{}, {}", name_of(node), fact.where));
    }
  }
  // A process in which the variable is unset has no fact about the variable. An unset variable counts as a
  // different value.
  for (const NodeReport& node : nodes) {
    if (!has_environment(node)) continue;
    for (auto& [key, compared] : facts)
      if (key.first == kEnvironment &&
          compared.is_first_word_of(node, speaks_about(node, key.first, key.second, "")))
        compared.values[std::string(kNotSet)].who.push_back(name_of(node));
  }
  bool any = false;
  for (const auto& [key, compared] : facts) {
    if (compared.values.size() < 2) continue;
    any = true;
    const auto most_frequent = std::max_element(
        compared.values.begin(), compared.values.end(),
        [](const auto& a, const auto& b) { return a.second.who.size() < b.second.who.size(); });
    std::string others;
    for (const auto& [value, holders] : compared.values) {
      if (value == most_frequent->first) continue;
      others += fmt::format("{}'{}' on {}", others.empty() ? "" : "; ", value, list_of(holders.who));
    }
    const char* const unit = compared.devices ? "device" : compared.ranks() ? "rank" : "node";
    judge.say(compared.drift, {.where = key.second,
                               .measured = fmt::format("{} ({}) differs: {}", key.second, key.first, others),
                               .wanted = fmt::format("'{}', as on {} {}{}", most_frequent->first,
                                                     most_frequent->second.who.size(), unit,
                                                     most_frequent->second.who.size() == 1 ? "" : "s"),
                               .source = fmt::format("the value of most {}s", unit),
                               .fix = fix_of_drift(key.first, key.second)});
  }
  if (!any && nodes.size() > 1) {
    judge.pass(fmt::format("{} properties are equal everywhere", facts.size()));
  }
}

void judge_clocks(const CheckInput& in, Judge& judge) {
  const auto& [nodes, options] = in.facts<ClusterFacts>();
  if (nodes.size() < 2) return;
  const auto [first, last] = std::minmax_element(
      nodes.begin(), nodes.end(),
      [](const NodeReport& a, const NodeReport& b) { return a.wall_clock < b.wall_clock; });
  const double spread = last->wall_clock - first->wall_clock;
  Finding finding{
      .measured =
          fmt::format("the clocks of {} and {} are {:.2f} s apart", name_of(*first), name_of(*last), spread),
      .wanted = fmt::format("at most {:g} s", options.clock_skew_seconds),
      .source = options.same_start ? "read at the same moment" : "with the time between their starts"};
  if (spread > options.clock_skew_seconds) {
    finding.fix = "start a time service on all nodes: 'systemctl enable --now chronyd'";
    judge.warn(std::move(finding));
  } else {
    judge.pass(std::move(finding));
  }
}

void judge_slow(const CheckInput& in, Judge& judge) {
  const auto& [nodes, options] = in.facts<ClusterFacts>();
  if (nodes.size() < 2) return;
  struct Point {
    const NodeReport* node;
    const Measurement* measurement;
  };
  std::map<std::pair<std::string, std::string>, std::vector<Point>> groups;  // keyed by name and unit
  for (const NodeReport& node : nodes)
    for (const Measurement& m : node.measurements)
      if (m.compared) groups[{m.name, m.unit}].push_back({&node, &m});
  bool any = false;
  std::size_t compared = 0;
  for (const auto& [key, points] : groups) {
    if (points.size() < 2) continue;
    ++compared;
    std::vector<double> values;
    for (const Point& point : points) values.push_back(point.measurement->value);
    // With two values, the median would hide the slower value, so both values are compared with the faster
    // value.
    const double middle =
        points.size() == 2 ? *std::max_element(values.begin(), values.end()) : median_of(values);
    const double scatter = points.size() == 2 ? 0 : scatter_of(values, middle);
    for (const Point& point : points) {
      const double value = point.measurement->value;
      if (value >= options.slow_share * middle || middle - value <= 3 * scatter) continue;
      any = true;
      judge.say(
          value < 0.5 * middle ? Verdict::kFail : Verdict::kWarn,
          {.where = name_of(*point.node),
           .measured =
               fmt::format("{}, {}: {} is {:.4g} {}, {:.0f} % of the other ranks'", name_of(*point.node),
                           point.measurement->where, key.first, value, key.second, 100 * value / middle),
           .wanted = fmt::format("at least {:.4g} {}", options.slow_share * middle, key.second),
           .source =
               points.size() == 2
                   ? fmt::format("{:.0f} % of the other rank's", 100 * options.slow_share)
                   : fmt::format("{:.0f} % of the median of {}", 100 * options.slow_share, points.size()),
           .fix = "leave the node out, and look there for a limited clock, heat, other processes, or a link "
                  "that has "
                  "fallen back: the slowest rank sets the pace of all"});
    }
  }
  if (any) return;
  if (compared == 0) {
    judge.skip("no speed was measured on several ranks");
  } else {
    judge.pass(fmt::format("all ranks are equally fast in {} measurements", compared));
  }
}

void judge_missing(const CheckInput& in, Judge& judge) {
  const ClusterOptions& options = in.facts<ClusterFacts>().options;
  for (const std::string& name : options.missing) {
    judge.fail({.where = name,
                .measured = fmt::format("{} did not report within {:.0f} s", name, options.missing_after),
                .wanted = "a report from every node",
                .source = "a node that does not answer has failed",
                .fix =
                    "check that the node is up, that its process was started (its log), and that it reaches "
                    "rank 0; "
                    "exclude it otherwise"});
  }
}

}  // namespace

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

double scatter_of(const std::vector<double>& values, double middle) {
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::fabs(value - middle));
  return 1.4826 * median_of(std::move(distances));
}

std::vector<Finding> compare_nodes(const std::vector<NodeReport>& nodes, const ClusterOptions& options) {
  const ClusterFacts facts{nodes, options};
  std::vector<Finding> findings;
  judge_group("cluster", facts, findings);
  return findings;
}

extern const Check kClusterMissing{.name = "cluster.missing",
                                   .category = "cluster",
                                   .question = "Did all nodes report?",
                                   .judge = judge_missing,
                                   .may_be_silent = true};
// The check also runs for a single node, because it compares devices as well as nodes.
extern const Check kClusterDrift{.name = "cluster.drift",
                                 .category = "cluster",
                                 .question = "Do all nodes have the same software and hardware?",
                                 .judge = judge_drift,
                                 .may_be_silent = true};
extern const Check kClusterClocks{.name = "cluster.clocks",
                                  .category = "cluster",
                                  .question = "Do the nodes' clocks agree?",
                                  .judge = judge_clocks,
                                  .may_be_silent = true};
extern const Check kClusterSlow{.name = "cluster.slow",
                                .category = "cluster",
                                .question = "Is a node slower than the others?",
                                .judge = judge_slow,
                                .may_be_silent = true};

}  // namespace primus::preflight
