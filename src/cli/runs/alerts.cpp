// primus alerts test
#include "safe/watch/alerts.h"

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/command.h"
#include "cli/options/experiment.h"
#include "config/trainer_config.h"
#include "lm/events/run_event.h"

namespace primus::cli {
namespace {

class AlertsTest final : public Command {
 public:
  void declare(Arguments& args) override { experiment_.declare(args); }

  int run(Console& console) override {
    const config::Experiment experiment = experiment_.load(console);
    const std::vector<watch::AlertRule> rules = watch::parse_alerts(experiment.trainer->alerts);
    if (rules.empty())
      throw invalid(
          "the experiment has no rule in 'alerts'",
          "a rule is, for example, alerts: [\"failed -> run:./notify.sh\"]; docs/watching.md describes "
          "the rules");
    const RunEvent event{.time = unix_seconds(),
                         .cause = "test",
                         .facts = RunWarning{.detector = "test",
                                             .text = "this is a test of the alerts of an experiment",
                                             .advice = "nothing needs to be done"}};
    int failed = 0;
    for (const watch::AlertRule& rule : rules) {
      const std::string json = watch::alert_json({.run = experiment.exp_name}, event, {.name = "test"}, 0);
      const std::string problem = watch::send_alert(rule, json, std::chrono::seconds(20));
      failed += problem.empty() ? 0 : 1;
      console.print(problem.empty() ? fmt::format("sent by {}\n", rule.shown())
                                    : fmt::format("not sent by {}: {}\n", rule.shown(), problem));
    }
    if (failed == 0) return 0;
    throw invalid(fmt::format("{} of {} alerts could not be sent", failed, rules.size()),
                  "the lines above name the reasons");
  }

 private:
  ExperimentArguments experiment_;
};

}  // namespace

extern const CommandEntry kAlertsTest{
    "alerts test",
    "Sends a test message by each alert rule of an experiment",
    "Reads the rules in the key 'alerts', and sends one message by each of them at once, without training. "
    "A webhook gets the message as JSON by POST, a program gets it on its standard input. "
    "docs/watching.md describes the rules and the messages.",
    "primus alerts test --config exp.yaml\n"
    "primus alerts test --config exp.yaml 'alerts=[\"fault -> run:cat\"]'",
    make_command<AlertsTest>,
    {Section::kTrain, 13}};

}  // namespace primus::cli
