// The rules by which a run alerts people (key `alerts`): "WHEN -> ACTION".
//
// WHEN is a list of conditions, separated by commas, of which one must hold: the name of a detector
// ("slow_rank"), "warning" (any detector), "fault", "stop", "end", "failed" (an end after a fault),
// "finished", an event of a supervisor (lm/events/supervision_alerts.h), or a comparison of a metric of a
// step with a number ("lm_loss > 5"). ACTION is "run:COMMAND", "http://HOST:PORT/PATH", "$NAME" (the address
// is in this environment variable), or "mail:ADDRESS".
//
// Plain data and pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lm/events/run_event.h"

namespace primus::watch {

struct AlertCondition {
  std::string name;     // an event, a detector, or a metric
  char comparison = 0;  // '<' or '>' for a metric; otherwise 0
  double limit = 0;
};

struct AlertRule {
  enum class Action : std::uint8_t { kRun, kWebhook, kMail };
  std::string text;  // the rule as it was written
  std::vector<AlertCondition> when;
  Action action = Action::kRun;
  std::string target;  // command, address, or mail address
  // Returns the action for messages, without what may be secret: "the webhook at host:8080".
  std::string shown() const;
};

// Parses a rule. Throws Error(kInvalid), which names the rule and the part that is wrong. The variable of a
// webhook is read now.
AlertRule parse_alert(const std::string& text);
std::vector<AlertRule> parse_alerts(const std::vector<std::string>& texts);

// Returns the value of a metric in a step, or nullopt.
std::optional<double> metric_of(const IterationRecord& record, std::string_view name);
// Returns the names of metrics that conditions may use.
std::vector<std::string> alert_metrics();
// Returns the condition of the rule that an event fulfils, or null. Metrics are not judged here.
const AlertCondition* matching(const AlertRule& rule, const RunEvent& event);

}  // namespace primus::watch
