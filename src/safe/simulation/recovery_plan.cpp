#include "safe/simulation/recovery_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/terminal/terminal.h"
#include "base/text/counted.h"
#include "base/text/json_text.h"

namespace primus::simulation {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kHour = 3600;
constexpr int kHalf = 6;         // intervals that the search tries on each side of the usual one
constexpr double kGood = 0.001;  // loss of goodput that makes an interval as good as the best one

double hours_between_faults(const Scenario& s) { return s.node_hours / static_cast<double>(s.nodes); }

// Runs the simulations and counts them.
class Planner {
 public:
  Planner(const PlanRequest& request, const std::function<void(std::uint64_t)>& done)
      : request_(request), done_(done) {}

  std::vector<PlanRow> plan() {
    std::vector<PlanRow> rows;
    for (const std::int64_t nodes : request_.nodes) {
      Scenario scenario = request_.scenario;
      scenario.nodes = nodes;
      scenario.limits.max_restarts = request_.max_restarts.value_or(supervise::usual_max_restarts(nodes));
      const std::vector<std::int64_t> spares =
          request_.spares.empty() ? std::vector{spares_needed(scenario)} : request_.spares;
      for (const std::int64_t number : spares) {
        scenario.spares = number;
        for (const std::int64_t snapshots : request_.snapshots) {
          scenario.snapshot_interval = snapshots;
          if (request_.intervals.empty()) rows.push_back(search(scenario));
          for (const std::int64_t interval : request_.intervals) rows.push_back(row(scenario, interval));
        }
      }
    }
    return rows;
  }

 private:
  PlanRow row(Scenario scenario, std::int64_t interval) {
    scenario.save_interval = interval;
    PlanRow row{.nodes = scenario.nodes,
                .spares = scenario.spares,
                .save_interval = interval,
                .snapshot_interval = scenario.snapshot_interval};
    row.max_restarts = scenario.limits.max_restarts;
    row.worst = 1;
    const double part = 1 / (scenario.days * 24 * kHour * request_.runs);
    double restarts = 0;
    for (int seed = 1; seed <= request_.runs; ++seed) {
      const Outcome outcome = simulate(scenario, static_cast<std::uint64_t>(seed));
      row.goodput += outcome.goodput / request_.runs;
      row.worst = std::min(row.worst, outcome.goodput);
      row.best = std::max(row.best, outcome.goodput);
      row.shares.wall += outcome.times.wall * part;
      row.shares.useful += outcome.times.useful * part;
      for (const RunTimes::Part& lost : RunTimes::lost())
        row.shares.*lost.seconds += outcome.times.*lost.seconds * part;
      row.waiting += outcome.waiting * part;
      restarts += static_cast<double>(outcome.restarts);
      if (!outcome.gave_up.empty()) {
        ++row.gave_up;
        row.gave_up_reason = outcome.gave_up;
      }
      if (done_) done_(++ran_);
    }
    // Per day on which the job ran: a run that ended early has no restarts afterwards.
    const double days = row.shares.wall * scenario.days * request_.runs;
    row.restarts_per_day = days > 0 ? restarts / days : 0;
    return row;
  }

  // Tries intervals around the usual one, each about 1.4 times the one before.
  PlanRow search(const Scenario& scenario) {
    const double usual = static_cast<double>(usual_interval(scenario));
    std::vector<PlanRow> rows;
    for (int i = -kHalf; i <= kHalf; ++i) {
      const auto interval =
          std::max<std::int64_t>(1, std::llround(usual * std::pow(2.0, static_cast<double>(i) / 2)));
      if (rows.empty() || rows.back().save_interval != interval) rows.push_back(row(scenario, interval));
    }
    PlanRow best = *std::ranges::max_element(rows, {}, &PlanRow::goodput);
    best.searched = true;
    for (const PlanRow& row : rows) {
      if (row.goodput < best.goodput - kGood) continue;
      if (best.shortest_good == 0) best.shortest_good = row.save_interval;
      best.longest_good = row.save_interval;
    }
    return best;
  }

  const PlanRequest& request_;
  const std::function<void(std::uint64_t)>& done_;
  std::uint64_t ran_ = 0;
};

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

// The share of the planned time after the ends of runs that ended early. All shares of a row add up to 1.
double ended_share(const PlanRow& row) { return std::max(0.0, 1 - row.shares.wall); }

constexpr std::string_view kColumns = R"(
Shares of the planned time, means over the simulated runs; with the goodput, they add up to 100 %:
  goodput    steps whose result is kept; beside it the goodput of the worst and of the best run
  repeated   steps that a fault lost, and that were done again
  restart    starts after faults, and the delays before them
  waiting    no node for a place of the job: a repair or a spare is awaited
  detect.    from a fault until the supervisor has detected it
  checkpts.  pauses of saves and snapshots
  other      the first start, and steps that a fault or the end interrupted
restarts/day  restarts per day until the job ended
)";
constexpr std::string_view kEndedColumn =
    "  ended      after the end of a run that ended early; the lines below say how many ended, and why\n";

// Below this goodput, no interval is worth an advice.
constexpr double kHopeless = 0.05;

// Returns the row that a note is about: "1024 nodes, 4 spares, snapshot_interval 20".
std::string name_of(const PlanRow& row, const PlanRequest& request) {
  std::string name = counted(row.nodes, "node");
  if (request.spares.size() > 1) name += ", " + counted(row.spares, "spare");
  if (request.snapshots.size() > 1) name += fmt::format(", snapshot_interval {}", row.snapshot_interval);
  return name;
}

// Returns why a row has a goodput near 0: the largest share of its lost time, and what reduces it.
std::string reason_of(const PlanRow& row) {
  const RunTimes& shares = row.shares;
  const std::pair<double, std::string> parts[] = {
      {shares.repeated, "steps are repeated, because a fault comes before the next save is complete"},
      {shares.restart - row.waiting, "the job restarts; --start-seconds is too long for so many faults"},
      {row.waiting, "the job waits for a repair; add --spares"},
      {shares.detection, "faults are detected"},
      {shares.checkpoints, "training waits for saves; lower --save-pause"}};
  const auto& most = *std::ranges::max_element(parts, {}, &std::pair<double, std::string>::first);
  return fmt::format("{} of the time, {}", percent(most.first), most.second);
}

}  // namespace

std::int64_t spares_needed(const Scenario& s) {
  double leaving = 0;
  for (const FaultKind& kind : published_faults()) leaving += kind.removes_node ? kind.share : 0;
  // The number of nodes in repair has a Poisson distribution. A lost node finds no spare if `spares` nodes
  // are in repair; the sum begins with numbers that do not occur.
  const double away = leaving * s.repair_hours / hours_between_faults(s);
  if (away <= 0) return leaving > 0 ? 1 : 0;
  constexpr double kRare = 1e-6, kDeviations = 12, kMore = 30;
  auto spares = static_cast<std::int64_t>(std::ceil(away + kDeviations * std::sqrt(away) + kMore));
  for (double none = 0; spares > 0; --spares) {
    const auto n = static_cast<double>(spares - 1);
    none += std::exp(n * std::log(away) - away - std::lgamma(n + 1));
    if (none > kRare) break;
  }
  return spares;
}

std::int64_t usual_interval(const Scenario& s) {
  const double seconds = std::sqrt(2 * s.save_pause * hours_between_faults(s) * kHour);
  const double save = (s.save_pause + s.save_seconds) / s.step_seconds;
  return static_cast<std::int64_t>(std::max({1.0, std::ceil(save), std::round(seconds / s.step_seconds)}));
}

std::uint64_t simulated_runs(const PlanRequest& request) {
  const std::size_t intervals = request.intervals.empty() ? 2 * kHalf + 1 : request.intervals.size();
  return request.nodes.size() * std::max<std::size_t>(1, request.spares.size()) * request.snapshots.size() *
         intervals * static_cast<std::size_t>(request.runs);
}

std::vector<PlanRow> plan_recovery(const PlanRequest& request,
                                   const std::function<void(std::uint64_t)>& done) {
  return Planner(request, done).plan();
}

std::string to_text(const PlanRequest& request, const std::vector<PlanRow>& rows) {
  const Scenario& s = request.scenario;
  std::string text =
      fmt::format("Simulated: {} of {:g} {}. A node has a fault every {:.0f} hours; faults by kind:",
                  counted(request.runs, "run"), s.days, s.days == 1 ? "day" : "days", s.node_hours);
  for (const FaultKind& kind : published_faults())
    text += fmt::format("{} {} {:.0f} %", &kind == published_faults().data() ? "" : ",", kind.name,
                        100 * kind.share);
  // These columns are only there if they have values.
  const bool snapshots = std::ranges::any_of(request.snapshots, [](std::int64_t n) { return n > 0; });
  const bool ends = std::ranges::any_of(rows, [](const PlanRow& row) { return row.gave_up > 0; });
  const auto column = [](bool is_there, const std::string& cell, int width) {
    return is_there ? fmt::format(" {:>{}}", cell, width) : "";
  };
  const auto interval = [&](const std::string& cell) { return column(snapshots, cell, 17); };
  const auto ended = [&](const std::string& cell) { return column(ends, cell, 7); };
  text += fmt::format(
      "\n\n{:>7} {:>7} {:>13}{}  {:>8} {:>17}  {:>8} {:>7} {:>7} {:>7} {:>9} {:>6}{}  {:>12}\n", "nodes",
      "spares", "save_interval", interval("snapshot_interval"), "goodput", "lowest to highest", "repeated",
      "restart", "waiting", "detect.", "checkpts.", "other", ended("ended"), "restarts/day");
  for (const PlanRow& row : rows) {
    text += fmt::format(
        "{:>7} {:>7} {:>13}{}  {:>8} {:>17}  {:>8} {:>7} {:>7} {:>7} {:>9} {:>6}{}  {:>12.1f}\n", row.nodes,
        row.spares, row.save_interval, interval(std::to_string(row.snapshot_interval)), percent(row.goodput),
        fmt::format("{} to {}", percent(row.worst), percent(row.best)), percent(row.shares.repeated),
        percent(row.shares.restart - row.waiting), percent(row.waiting), percent(row.shares.detection),
        percent(row.shares.checkpoints), percent(row.shares.other + row.shares.startup),
        ended(percent(ended_share(row))), row.restarts_per_day);
  }
  text += kColumns;
  if (ends) text += kEndedColumn;
  text += '\n';
  for (const PlanRow& row : rows) {
    if (row.gave_up > 0) {
      text += fmt::format("{}: {} of {} runs ended early: {}{}\n", name_of(row, request), row.gave_up,
                          request.runs, row.gave_up_reason,
                          row.gave_up_reason == "too many restarts"
                              ? fmt::format("; --max-restarts is {}", row.max_restarts)
                          : row.gave_up_reason == "lost node"
                              ? fmt::format("; --node-wait is {:g} minute{}", s.limits.node_wait / 60,
                                            s.limits.node_wait == 60 ? "" : "s")
                              : std::string());
    }
    if (row.goodput < kHopeless) {
      text +=
          fmt::format("{}: {}: {}\n", name_of(row, request),
                      row.searched ? "no save_interval gives a useful goodput" : "the goodput is not useful",
                      reason_of(row));
    } else if (row.searched && row.shortest_good < row.longest_good) {
      text += fmt::format("{}: save_interval {} to {} have a goodput of at least {}\n", name_of(row, request),
                          row.shortest_good, row.longest_good, percent(row.goodput - kGood));
    }
  }
  return text;
}

std::string to_json(const PlanRequest& request, const std::vector<PlanRow>& rows) {
  const Scenario& s = request.scenario;
  Json json{{"days", s.days},
            {"runs", request.runs},
            {"node_hours", s.node_hours},
            {"repair_hours", s.repair_hours},
            {"step_seconds", s.step_seconds},
            {"save_pause", s.save_pause},
            {"save_seconds", s.save_seconds},
            {"snapshot_pause", s.snapshot_pause},
            {"snapshot_seconds", s.snapshot_seconds},
            {"start_seconds", s.start_seconds},
            {"node_wait_seconds", s.limits.node_wait},
            {"rows", Json::array()}};
  for (const PlanRow& row : rows) {
    Json line{{"nodes", row.nodes},
              {"spares", row.spares},
              {"save_interval", row.save_interval},
              {"snapshot_interval", row.snapshot_interval},
              {"goodput", row.goodput},
              {"worst", row.worst},
              {"best", row.best},
              {"max_restarts", row.max_restarts},
              {"waiting", row.waiting},
              {"restarts_per_day", row.restarts_per_day},
              {"ended", ended_share(row)},
              {"gave_up", row.gave_up},
              {"lost", Json::parse(primus::to_json(row.shares))}};
    if (row.gave_up > 0) line["gave_up_reason"] = row.gave_up_reason;
    if (row.searched && row.goodput >= kHopeless)
      line["good_intervals"] = {row.shortest_good, row.longest_good};
    json["rows"].push_back(std::move(line));
  }
  return json_text(json) + "\n";
}

}  // namespace primus::simulation
