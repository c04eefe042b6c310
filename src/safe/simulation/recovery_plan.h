// Chooses save_interval and the number of spare nodes for jobs of several sizes, by simulated runs
// (recovery_simulation.h).
//
// Free functions and plain data; not synchronized.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "safe/simulation/recovery_simulation.h"

namespace primus::simulation {

struct PlanRequest {
  Scenario scenario = {};                     // without nodes, spares, intervals and max_restarts
  std::vector<std::int64_t> nodes = {};       // sizes of the job
  std::vector<std::int64_t> spares = {};      // empty: spares_needed()
  std::vector<std::int64_t> intervals = {};   // values of save_interval; empty: the best one is searched
  std::vector<std::int64_t> snapshots = {0};  // values of snapshot_interval; 0: no snapshots
  std::optional<int> max_restarts = {};       // empty: supervise::usual_max_restarts() of the nodes
  int runs = 20;                              // simulated runs per row, with the seeds 1, 2 ...
};

// Means over the runs of one scenario. Times are shares of the planned length of the run.
struct PlanRow {
  std::int64_t nodes = 0, spares = 0, save_interval = 0, snapshot_interval = 0;
  double goodput = 0, worst = 0, best = 0;  // mean, and the lowest and the highest goodput of a run
  RunTimes shares = {};                     // `wall` is below 1 if runs ended early
  double waiting = 0;                       // part of shares.restart: the job waits for a node
  double restarts_per_day = 0;
  int max_restarts = 0;
  int gave_up = 0;                  // runs that the policy ended
  std::string gave_up_reason = {};  // of one of these runs
  bool searched = false;
  // If the interval was searched: intervals whose goodput is at most 0.001 below the best one.
  std::int64_t shortest_good = 0, longest_good = 0;
};

// Returns the smallest number of spares with which at most one of a million lost nodes finds no spare. The
// number of nodes in repair has a Poisson distribution.
std::int64_t spares_needed(const Scenario& scenario);

// Returns the interval, in steps, of Young's formula: the square root of 2 * (time of a pause) * (time
// between two faults of the job). At least the number of steps that a save needs.
std::int64_t usual_interval(const Scenario& scenario);

// Returns the largest number of runs that plan_recovery() simulates.
std::uint64_t simulated_runs(const PlanRequest& request);

// `done` is called after each simulated run with the number of completed runs. Throws Error(kInvalid) as
// simulate().
std::vector<PlanRow> plan_recovery(const PlanRequest& request,
                                   const std::function<void(std::uint64_t)>& done = {});

std::string to_text(const PlanRequest& request, const std::vector<PlanRow>& rows);
std::string to_json(const PlanRequest& request, const std::vector<PlanRow>& rows);

}  // namespace primus::simulation
