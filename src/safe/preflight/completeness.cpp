#include "safe/preflight/completeness.h"

#include <algorithm>
#include <iterator>

#include "safe/preflight/check.h"

namespace primus::preflight {

struct CompletenessFacts {
  const Assignment& asked;
  // the report has no measurement, and its only findings are "the process runs" and skipped checks
  bool nothing_done;
};

struct ProcessFacts {};

namespace {

constexpr std::string_view kProcessName = "host.process";

bool has_nothing(const NodeReport& node) {
  return node.measurements.empty() && std::ranges::all_of(node.findings, [](const Finding& finding) {
           return finding.verdict == Verdict::kSkip || finding.check == kProcessName;
         });
}

void judge_exchanges(const CheckInput& in, Judge& judge) {
  if (in.facts<CompletenessFacts>().asked.lone_exchanges)
    judge.skip("tests within and between nodes: the job has one rank");
}

void judge_sections(const CheckInput& in, Judge& judge) {
  const auto& [asked, nothing_done] = in.facts<CompletenessFacts>();
  if (!asked.sections || asked.only_tests || !nothing_done) return;
  judge.fail({.measured = "none of the requested checks could run",
              .wanted = "at least one of them",
              .source = "--host, --gpu and --network",
              .fix = "'primus device list' shows why no GPU was found; for a machine without GPUs remove "
                     "--gpu, or set --expected-gpus 0"});
}

void judge_tests(const CheckInput& in, Judge& judge) {
  const auto& [asked, nothing_done] = in.facts<CompletenessFacts>();
  if (!asked.only_tests || !nothing_done) return;
  judge.fail({.measured = "none of the requested tests could run",
              .wanted = "at least one of them",
              .source = "--perf-test and --tests",
              .fix = "start the ranks that they need (--nproc 2 within a machine; primus slurm srun -N 2 -- "
                     "direct -- preflight ... between machines), or choose other tests"});
}

void judge_process(const CheckInput&, Judge& judge) { judge.pass("the process runs"); }

}  // namespace

void check_completeness(const Assignment& asked, Report& report) {
  const CompletenessFacts facts{asked, std::ranges::all_of(report.nodes, has_nothing)};
  judge_group("completeness", facts, report.cluster);
}

void check_process(NodeReport& report) {
  std::vector<Finding> first;
  judge_group("process", ProcessFacts{}, first);
  report.findings.insert(report.findings.begin(), std::make_move_iterator(first.begin()),
                         std::make_move_iterator(first.end()));
}

extern const Check kClusterExchanges{.name = "cluster.exchanges",
                                     .category = "cluster",
                                     .question = "Are there ranks to exchange with?",
                                     .judge = judge_exchanges,
                                     .may_be_silent = true,
                                     .group = "completeness"};
extern const Check kNothingChecked{.name = "cluster.nothing-checked",
                                   .category = "cluster",
                                   .question = "Could one of the selected checks be made?",
                                   .judge = judge_sections,
                                   .may_be_silent = true,
                                   .group = "completeness"};
extern const Check kNothingMeasured{.name = "cluster.nothing-measured",
                                    .category = "cluster",
                                    .question = "Could one of the selected tests be made?",
                                    .judge = judge_tests,
                                    .may_be_silent = true,
                                    .group = "completeness"};
extern const Check kProcess{.name = kProcessName,
                            .category = "host",
                            .question = "Does the process run?",
                            .judge = judge_process,
                            .group = "process"};

}  // namespace primus::preflight
