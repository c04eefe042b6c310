#include "safe/simulation/recovery_simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "safe/simulation/recovery_plan.h"

namespace primus::simulation {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A scenario in which the policy never gives up and a fault costs only time.
Scenario unlimited() {
  Scenario scenario;
  scenario.limits = {.max_restarts = 1'000'000,
                     .loop = 1'000'000,
                     .mixed_loop = 1'000'000,
                     .first_delay = 0,
                     .max_delay = 0,
                     .node_wait = 1e9};
  return scenario;
}

double sum(const RunTimes& times) {
  double sum = times.useful;
  for (const RunTimes::Part& part : RunTimes::lost()) sum += times.*part.seconds;
  return sum;
}

TEST(RecoverySimulation, SnapshotsLimitTheRepeatedStepsAndCostTheirPause) {
  Scenario s;
  s.node_hours = 1e9;
  s.step_seconds = 10;
  s.save_interval = 1000;
  s.snapshot_interval = 10;
  s.snapshot_pause = 2;
  s.snapshot_seconds = 5;
  s.start_seconds = 0;
  s.save_pause = s.save_seconds = 0;
  s.days = 1000 * 102.0 / 86400;  // 1000 intervals of ten steps and a pause
  const Outcome quiet = simulate(s, 1);
  EXPECT_NEAR(quiet.times.useful, 100'000, 10 + 1e-6);
  EXPECT_NEAR(sum(quiet.times), quiet.times.wall, 1e-6);
  Scenario faulty = unlimited();
  faulty.node_hours = 10;
  faulty.step_seconds = 10;
  faulty.save_interval = 1000;
  faulty.days = 30;
  const Outcome disk = simulate(faulty, 1);
  faulty.snapshot_interval = 10;
  const Outcome memory = simulate(faulty, 1);
  ASSERT_GT(memory.faults, 20);
  // A fault repeats at most an interval, and what was done until the snapshot was usable.
  EXPECT_LE(memory.times.repeated, static_cast<double>(memory.faults) * (100 + 10 + 10));
  EXPECT_GT(disk.times.repeated, 5 * memory.times.repeated);
  EXPECT_GT(memory.goodput, disk.goodput);
}

// A snapshot that takes longer than the interval delays no step.
TEST(RecoverySimulation, SlowSnapshotsAreLeftOut) {
  Scenario s;
  s.node_hours = 1e9;
  s.step_seconds = 10;
  s.save_interval = 1000;
  s.snapshot_interval = 1;
  s.snapshot_pause = 0;
  s.snapshot_seconds = 35;
  s.start_seconds = s.save_pause = s.save_seconds = 0;
  s.days = 1;
  const Outcome out = simulate(s, 1);
  EXPECT_NEAR(out.times.useful, 86400, 10 + 1e-6);
}

TEST(RecoverySimulation, WithoutFaultsOnlyTheStartAndTheSavesCostTime) {
  Scenario s;
  s.node_hours = 1e9;
  s.step_seconds = 10;
  s.save_interval = 10;
  s.save_pause = 5;
  s.save_seconds = 20;
  s.start_seconds = 95;
  // 1000 intervals of ten steps and a pause, after the start.
  s.days = (95 + 1000 * 105.0) / 86400;
  const Outcome out = simulate(s, 1);
  EXPECT_EQ(out.faults, 0);
  EXPECT_NEAR(out.times.useful, 100'000, 10 + 1e-6);
  EXPECT_NEAR(out.times.startup, 95, 1e-6);
  EXPECT_NEAR(out.times.checkpoints, 5'000, 10 + 1e-6);
  EXPECT_NEAR(out.times.wall, s.days * 86400, 1e-6);
}

TEST(RecoverySimulation, ASaveWaitsForTheOneBeforeIt) {
  Scenario s;
  s.node_hours = 1e9;
  s.step_seconds = 10;
  s.save_interval = 1;  // due every ten seconds, but a save takes 25
  s.save_pause = 0;
  s.save_seconds = 25;
  s.start_seconds = 0;
  s.days = 1;
  EXPECT_NEAR(simulate(s, 1).goodput, 10.0 / 25, 1e-3);
}

// With exponential faults of rate r, the expected time until an interval of w seconds, with a pause of p
// seconds, is complete is (1 / r + lost) * (exp(r * (w + p)) - 1), where `lost` is the time from a fault
// until training continues. (Daly 2006, without his approximations; faults during a restart are rare here.)
TEST(RecoverySimulation, GoodputEqualsTheFormulaForExponentialFaults) {
  Scenario s = unlimited();
  s.nodes = 1;
  s.node_hours = 50;
  s.repair_hours = 0;
  s.spares = 10;
  s.step_seconds = 1;  // short: a part of a step is lost, too
  s.save_interval = 7200;
  s.save_pause = 200;
  s.save_seconds = 0;
  s.start_seconds = 600;
  s.days = 3000;
  double detection = 0;
  for (const FaultKind& kind : published_faults()) detection += kind.share * kind.detection;
  const double rate = 1 / (50 * 3600.0), lost = s.start_seconds + detection;
  const double interval = (1 / rate + lost) * std::expm1(rate * (7200 + 200));
  double goodput = 0;
  constexpr int kRuns = 10;
  for (int seed = 1; seed <= kRuns; ++seed) goodput += simulate(s, seed).goodput / kRuns;
  // About 14,400 faults, each of which loses 1 h on average: the standard deviation of the mean is 2e-4.
  EXPECT_NEAR(goodput, 7200 / interval, 8e-4);
}

TEST(RecoverySimulation, ThePartsOfTheTimeAddUp) {
  Scenario s = unlimited();
  s.nodes = 2000;
  s.node_hours = 6000;
  s.spares = 3;
  s.days = 20;
  for (int seed = 1; seed <= 5; ++seed) {
    const Outcome out = simulate(s, seed);
    EXPECT_GT(out.faults, 50);
    EXPECT_EQ(out.restarts, out.faults);
    EXPECT_GT(out.waiting, 0) << "three spares are too few";
    EXPECT_NEAR(sum(out.times), out.times.wall, 1e-6 * out.times.wall);
    EXPECT_NEAR(out.times.wall, 20 * 86400, 1e-6);
    EXPECT_LE(out.waiting, out.times.restart);
  }
}

TEST(RecoverySimulation, TheSupervisorsPolicyDecides) {
  Scenario s;
  s.nodes = 5000;
  s.node_hours = 4000;  // 30 faults a day
  s.spares = 1000;
  s.days = 10;
  s.start_seconds = 30;
  s.save_interval = 20;
  const Outcome few = simulate(s, 1);
  EXPECT_EQ(few.gave_up, "too many restarts");
  EXPECT_LT(few.times.wall, 2 * 86400);
  s.limits.max_restarts = 1000;
  EXPECT_EQ(simulate(s, 1).gave_up, "");
  s.save_interval = 100'000;  // no checkpoint between two faults
  EXPECT_EQ(simulate(s, 1).gave_up, "crash loop");
}

TEST(RecoverySimulation, EqualSeedsGiveEqualRuns) {
  Scenario s = unlimited();
  s.nodes = 1000;
  s.node_hours = 5000;
  EXPECT_EQ(simulate(s, 7).goodput, simulate(s, 7).goodput);
  EXPECT_NE(simulate(s, 7).goodput, simulate(s, 8).goodput);
}

TEST(RecoverySimulation, RefusesImpossibleScenarios) {
  Scenario s;
  EXPECT_THROW(simulate(s, 1), Error) << "node_hours is 0";
  s.node_hours = 1;
  s.step_seconds = 0;
  EXPECT_THROW(simulate(s, 1), Error);
  s.step_seconds = 1;
  s.days = std::nan("");
  EXPECT_THROW(simulate(s, 1), Error);
}

TEST(RecoveryPlan, TheSearchFindsTheIntervalOfTheFormula) {
  PlanRequest request{.scenario = unlimited(), .nodes = {1024}, .max_restarts = 1000, .runs = 10};
  request.scenario.node_hours = 6400;
  request.scenario.save_pause = 20;
  request.scenario.save_seconds = 20;
  const PlanRow row = plan_recovery(request).at(0);
  // Young: sqrt(2 * 20 s * 22,500 s) = 949 s, which is 95 steps of ten seconds.
  Scenario scenario = request.scenario;
  scenario.nodes = 1024;
  EXPECT_EQ(usual_interval(scenario), 95);
  EXPECT_LE(row.shortest_good, 95);
  EXPECT_GE(row.longest_good, 95);
  EXPECT_GT(row.goodput, 0.9);
  EXPECT_EQ(row.gave_up, 0);
}

TEST(RecoveryPlan, EnoughSparesMakeWaitingRare) {
  PlanRequest request{
      .scenario = unlimited(), .nodes = {2048}, .intervals = {50}, .max_restarts = 1000, .runs = 10};
  request.scenario.node_hours = published_node_hours();
  const PlanRow enough = plan_recovery(request).at(0);
  EXPECT_LT(enough.waiting, 1e-3);
  request.spares = {0};
  EXPECT_GT(plan_recovery(request).at(0).waiting, 0.1);
}

// As the supervisor does: a job whose lost node does not return within the time of --node-wait ends.
TEST(RecoverySimulation, AJobEndsWithoutANodeInTime) {
  Scenario s = unlimited();
  s.nodes = 1000;
  s.node_hours = 5000;
  s.spares = 0;
  s.days = 30;
  const Outcome waits = simulate(s, 1);
  EXPECT_EQ(waits.gave_up, "");
  EXPECT_NEAR(waits.times.wall, 30 * 86400, 1e-6);
  s.limits.node_wait = supervise::RecoveryLimits{}.node_wait;
  const Outcome ends = simulate(s, 1);
  EXPECT_EQ(ends.gave_up, "lost node");
  EXPECT_LT(ends.times.wall, 3 * 86400);
  EXPECT_LE(ends.waiting, 60);
  EXPECT_NEAR(sum(ends.times), ends.times.wall, 1e-6 * ends.times.wall);
}

TEST(RecoveryPlan, NamesTheLimitOfJobsThatEndWithoutANode) {
  PlanRequest request{.nodes = {1000}, .spares = {0}, .intervals = {20}, .runs = 3};
  request.scenario.node_hours = published_node_hours();
  EXPECT_THAT(to_text(request, plan_recovery(request)),
              HasSubstr("1000 nodes: 3 of 3 runs ended early: lost node; --node-wait is 1 minute\n"));
}

TEST(RecoveryPlan, EachAdviceNamesItsRow) {
  PlanRequest request{.nodes = {1000}, .snapshots = {0, 20}, .runs = 2};
  request.scenario.node_hours = published_node_hours();
  const std::string text = to_text(request, plan_recovery(request));
  EXPECT_THAT(text, HasSubstr("1000 nodes, snapshot_interval 0: save_interval "));
  EXPECT_THAT(text, HasSubstr("1000 nodes, snapshot_interval 20: save_interval "));
}

// A start takes longer than the time between two faults.
TEST(RecoveryPlan, AHopelessGoodputHasAReasonAndNoAdvice) {
  PlanRequest request{.nodes = {8000}, .max_restarts = 1'000'000, .runs = 1};
  request.scenario = unlimited();
  request.scenario.node_hours = published_node_hours();
  request.scenario.start_seconds = 20000;
  request.scenario.days = 10;
  const std::vector<PlanRow> rows = plan_recovery(request);
  ASSERT_LT(rows.at(0).goodput, 0.05);
  const std::string text = to_text(request, rows);
  EXPECT_THAT(text, HasSubstr("8000 nodes: no save_interval gives a useful goodput: "));
  EXPECT_THAT(text, HasSubstr("of the time, the job restarts"));
  EXPECT_THAT(text, Not(HasSubstr("have a goodput of at least")));
  EXPECT_THAT(to_json(request, rows), Not(HasSubstr("good_intervals")));
}

// With the default of --max-restarts, no simulated run of the published scenario ends early.
TEST(RecoveryPlan, TheUsualNumberOfRestartsIsEnough) {
  PlanRequest request{.nodes = {1, 256, 2048, 8192}, .intervals = {10}, .runs = 30};
  request.scenario.node_hours = published_node_hours();
  request.scenario.days = 54;
  for (const PlanRow& row : plan_recovery(request))
    EXPECT_EQ(row.gave_up, 0) << row.nodes << row.gave_up_reason;
}

TEST(RecoveryPlan, ReportsEarlyEnds) {
  PlanRequest request{.nodes = {8000}, .intervals = {20}, .max_restarts = 20, .runs = 3};
  request.scenario.node_hours = published_node_hours();
  const std::vector<PlanRow> rows = plan_recovery(request);
  EXPECT_EQ(rows.at(0).gave_up, 3);
  const std::string text = to_text(request, rows);
  EXPECT_THAT(text,
              HasSubstr("8000 nodes: 3 of 3 runs ended early: too many restarts; --max-restarts is 20"));
  EXPECT_THAT(text, HasSubstr("   ended  restarts/day"));
  EXPECT_THAT(text, HasSubstr("\n  ended      after the end of a run that ended early"));
}

// The shares of a row add up to the planned time, also if runs end early. Restarts are counted per day on
// which the job ran.
TEST(RecoveryPlan, TheColumnsAddUp) {
  for (const std::vector<std::int64_t>& snapshots : {std::vector<std::int64_t>{0}, {0, 4}}) {
    PlanRequest request{
        .nodes = {16, 1000, 8000}, .spares = {0, 40}, .intervals = {20}, .snapshots = snapshots, .runs = 3};
    request.scenario.node_hours = published_node_hours();
    const std::vector<PlanRow> rows = plan_recovery(request);
    const nlohmann::json json = nlohmann::json::parse(to_json(request, rows));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const PlanRow& row = rows[i];
      const RunTimes& s = row.shares;
      const double ended = json["rows"][i]["ended"].get<double>();
      EXPECT_NEAR(
          row.goodput + s.repeated + s.restart + s.detection + s.checkpoints + s.other + s.startup + ended, 1,
          1e-6);
      EXPECT_EQ(s.phases, 0);
      EXPECT_LE(row.waiting, s.restart + 1e-9);
      EXPECT_EQ(row.gave_up > 0, ended > 1e-9);
      EXPECT_NEAR(row.restarts_per_day, static_cast<double>(row.nodes) * 24 / published_node_hours(),
                  row.gave_up > 0 ? 40 : 3);
    }
  }
}

// 47 of the 419 interruptions and the waits for people are not simulated; the goodput that was published for
// this run is "more than 90 %".
TEST(RecoveryPlan, TheScenarioOfLlama3HasItsRateOfFaults) {
  PlanRequest request{
      .scenario = unlimited(), .nodes = {2048}, .intervals = {50}, .max_restarts = 1000, .runs = 10};
  request.scenario.node_hours = published_node_hours();
  request.scenario.days = 54;
  const PlanRow row = plan_recovery(request).at(0);
  EXPECT_NEAR(row.restarts_per_day * 54, 413, 25);
}

}  // namespace
}  // namespace primus::simulation
