// Tests of preflight's reports: JSON, text and HTML, and checks that fail or do not answer.
#include "safe/preflight/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "safe/preflight/check.h"
#include "safe/preflight/completeness.h"
#include "safe/preflight/guard.h"

namespace primus::preflight {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

Report example() {
  NodeReport node{.rank = 3, .host = "node-<3>", .wall_clock = 1.5e9, .seconds = 2};
  node.facts.push_back({"host", "kernel", "6.1", Verdict::kWarn});
  node.measurements.push_back({.name = "gemm bf16, 1024",
                               .where = "cuda:0",
                               .unit = "TFLOP/s",
                               .value = 612.5,
                               .wanted = 593,
                               .compared = true});
  node.findings.push_back(
      {.check = "host.cpus", .category = "host", .verdict = Verdict::kPass, .measured = "fine"});
  node.findings.push_back({.check = "gpu.count",
                           .category = "gpu",
                           .verdict = Verdict::kFail,
                           .measured = "7 | \"GPUs\" \x1b[31m",
                           .wanted = "8",
                           .source = "--expected-gpus",
                           .fix = "look for the eighth"});
  node.findings.push_back(
      {.check = "gpu.links", .category = "gpu", .verdict = Verdict::kSkip, .measured = "one GPU"});
  return {.title = "Preflight of 1 node",
          .generated = "today",
          .version = "0.1",
          .notes = {"a note"},
          .nodes = {node},
          .seconds = 2};
}

TEST(Report, JsonRoundTrips) {
  const Report report = example();
  const std::string text = to_json(report.nodes[0]).dump();
  const NodeReport back = node_report(text, "a file");
  EXPECT_EQ(to_json(back).dump(), text);
  EXPECT_EQ(back.findings[1].verdict, Verdict::kFail);
  EXPECT_EQ(back.measurements[0].value, 612.5);
}

TEST(Report, ReportsOfOtherNodesAreChecked) {
  const std::string good = to_json(example().nodes[0]).dump();
  for (const std::string& bad : {std::string("{}"), std::string("[]"), std::string("{\"host\": 3}"),
                                 good.substr(0, good.size() - 2)}) {
    EXPECT_THROW(node_report(bad, "a file"), Error) << bad;
  }
  std::string other = good;
  other.replace(other.find("\"pass\""), 6, "\"good\"");
  EXPECT_THROW(node_report(other, "a file"), Error);
}

TEST(Report, EveryFormatNamesTheFailureAndItsFix) {
  const Report report = example();
  for (const std::string& text :
       {to_text(report, Terminal{}, false), to_markdown(report), to_html(report, true)}) {
    EXPECT_THAT(text, HasSubstr("gpu.count"));
    EXPECT_THAT(text, HasSubstr("look for the eighth"));
    EXPECT_THAT(text, HasSubstr("--expected-gpus"));
    EXPECT_THAT(text, HasSubstr("612.5"));
    EXPECT_THAT(text, HasSubstr("a note"));
    EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  }
  EXPECT_THAT(to_text(report, Terminal{}, false), Not(HasSubstr("host.cpus")));
  EXPECT_THAT(to_text(report, Terminal{}, true), HasSubstr("host.cpus"));
  EXPECT_THAT(to_text(report, Terminal{}, false), HasSubstr("--all-checks shows them"));
  EXPECT_THAT(to_text(report, Terminal{}, true), AllOf(HasSubstr("one GPU"), Not(HasSubstr("--all-checks"))));
  EXPECT_THAT(to_html(report, true), Not(HasSubstr("node-<3>")));
  EXPECT_THAT(to_html(report, true), HasSubstr("<svg"));
  EXPECT_THAT(to_html(report, false), Not(HasSubstr("<svg")));
  EXPECT_THAT(to_markdown(report), HasSubstr("7 \\| "));
  EXPECT_EQ(to_json(report)["failures"], 1);
  EXPECT_EQ(to_json(report)["verdict"], "fail");
}

TEST(Report, NothingCheckedIsAFailure) {
  EXPECT_EQ(Report{}.verdict(), Verdict::kFail);
  EXPECT_EQ(verdict_of({}), Verdict::kFail);
}

TEST(Checks, AnErrorOrSilenceOfACheckIsAFailure) {
  static constexpr Check kBroken[] = {
      {"a.throws", "a", "?", [](const CheckInput&, Judge&) { throw std::runtime_error("broken"); }},
      {"a.silent", "a", "?", [](const CheckInput&, Judge&) {}},
  };
  const Machine machine;
  const Inventory found;
  const Requirements wanted;
  std::vector<Finding> findings;
  run_checks(kBroken, {machine, found, wanted}, findings);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].verdict, Verdict::kFail);
  EXPECT_THAT(findings[0].measured, HasSubstr("broken"));
  EXPECT_EQ(findings[1].verdict, Verdict::kFail);
}

TEST(Checks, FactsOfAnotherTypeAreAFailure) {
  std::vector<Finding> findings;
  judge_group("process", 1, findings);  // judges no facts
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].check, "host.process");
  EXPECT_EQ(findings[0].verdict, Verdict::kPass);
  findings.clear();
  judge_group("storage", 1, findings);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].verdict, Verdict::kFail);
}

TEST(Completeness, ARunWithoutAnyRequestedTestFails) {
  const auto checks = [](const Assignment& asked, Report report) {
    report.cluster.clear();
    check_completeness(asked, report);
    std::vector<std::string> names;
    for (const Finding& finding : report.cluster) names.push_back(finding.check);
    return names;
  };
  NodeReport idle{.host = "node"};
  idle.findings.push_back({.check = "gpu.count", .category = "gpu", .verdict = Verdict::kSkip});
  check_process(idle);
  EXPECT_EQ(idle.findings.front().check, "host.process");
  const Report nothing{.nodes = {idle}};
  using Names = std::vector<std::string>;
  EXPECT_EQ(checks({}, nothing), Names());
  EXPECT_EQ(checks({.sections = true}, nothing), Names{"cluster.nothing-checked"});
  EXPECT_EQ(checks({.sections = true, .only_tests = true}, nothing), Names{"cluster.nothing-measured"});
  EXPECT_EQ(checks({.only_tests = true, .lone_exchanges = true}, nothing),
            (Names{"cluster.exchanges", "cluster.nothing-measured"}));
  EXPECT_EQ(checks({.sections = true}, example()), Names());
  EXPECT_EQ(checks({.only_tests = true}, example()), Names());
}

TEST(Guard, WorkThatHangsIsAbandoned) {
  const auto late = guarded<int>(
      [] {
        std::this_thread::sleep_for(400ms);
        return 1;
      },
      20ms);
  EXPECT_FALSE(late.value);
  EXPECT_TRUE(late.timed_out);
  const auto thrown = guarded<int>([]() -> int { throw invalid("no", "do this"); }, 10s);
  EXPECT_FALSE(thrown.timed_out);
  EXPECT_EQ(thrown.problem, "no; do this");
  EXPECT_EQ(guarded<int>([] { return 7; }, 10s).value, 7);
  std::this_thread::sleep_for(500ms);  // sanitizers report a thread that outlives main()
}

}  // namespace
}  // namespace primus::preflight
