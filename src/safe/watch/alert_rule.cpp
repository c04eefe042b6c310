#include "safe/watch/alert_rule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "base/error.h"
#include "base/text/suggest.h"
#include "lm/events/detectors/detector.h"
#include "lm/events/supervision_alerts.h"
#include "lm/reward/http_post.h"
#include "safe/preflight/machine.h"

namespace primus::watch {
namespace {

struct Metric {
  std::string_view name;
  std::optional<double> (*value)(const IterationRecord&);
};

constexpr Metric kMetrics[] = {
    {"lm_loss", [](const IterationRecord& r) { return std::optional(r.lm_loss); }},
    {"grad_norm", [](const IterationRecord& r) { return r.grad_norm; }},
    {"learning_rate", [](const IterationRecord& r) { return std::optional(r.learning_rate); }},
    {"step_seconds",
     [](const IterationRecord& r) { return std::optional(r.throughput.now.seconds_per_iteration); }},
    {"tokens_per_second",
     [](const IterationRecord& r) { return std::optional(r.throughput.now.tokens_per_second); }},
    {"data_wait_share",
     [](const IterationRecord& r) { return std::optional(r.throughput.now.data_wait_share); }},
    {"mfu", [](const IterationRecord& r) { return r.throughput.now.mfu; }},
    {"memory_used_bytes",
     [](const IterationRecord& r) { return r.memory ? std::optional(r.memory->used) : std::nullopt; }}};

constexpr std::string_view kEvents[] = {"warning", "fault", "stop", "end", "failed", "finished"};
constexpr std::string_view kOfSupervisor[] = {kRankLostAlert, kNodeLostAlert, kRestartedAlert, kGaveUpAlert};
// Names of the warnings of the machine watch (probes/), of the checks for silent corruption, and of the
// start.
constexpr std::string_view kFindings[] = {
    "gpu_memory",    "gpu_error",         "gpu_throttled",     "gpu_link",     "kernel_fault",
    "kernel_notice", "network_port",      "memory_growth",     "disk_filling", "clock_jump",
    "not_watched",   "silent_corruption", "damaged_checkpoint"};

std::vector<std::string> known_names() {
  std::vector<std::string> names(std::begin(kEvents), std::end(kEvents));
  names.insert(names.end(), std::begin(kOfSupervisor), std::end(kOfSupervisor));
  for (const DetectorEntry* entry : detectors()) names.emplace_back(entry->name);
  names.insert(names.end(), std::begin(kFindings), std::end(kFindings));
  return names;
}

Error bad_rule(const std::string& rule, const std::string& why, const std::string& hint) {
  // The action may have a secret, so only the conditions are shown. Without an arrow, any part may be the
  // action.
  const std::size_t arrow = rule.find("->");
  if (arrow == std::string::npos)
    return invalid(fmt::format("alerts: in a rule without '->', {}", why), hint);
  return invalid(
      fmt::format("alerts: in the rule '{} -> ...', {}", preflight::trimmed(rule.substr(0, arrow)), why),
      hint);
}

AlertCondition parse_condition(const std::string& rule, const std::string& text) {
  const std::size_t at = text.find_first_of("<>");
  if (at == std::string::npos) {
    const std::vector<std::string> names = known_names();
    if (std::ranges::find(names, text) == names.end())
      throw bad_rule(rule, fmt::format("'{}' is not a condition", text),
                     fmt::format("conditions are {}, and METRIC > NUMBER", fmt::join(names, ", ")));
    return {.name = text};
  }
  AlertCondition condition{.name = preflight::trimmed(text.substr(0, at)), .comparison = text[at]};
  const std::string number = preflight::trimmed(text.substr(at + 1));
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), condition.limit);
  if (error != std::errc() || end != number.data() + number.size() || !std::isfinite(condition.limit))
    throw bad_rule(rule, fmt::format("'{}' is not a number", number),
                   "write METRIC > NUMBER or METRIC < NUMBER");
  const std::vector<std::string> metrics = alert_metrics();
  if (std::ranges::find(metrics, condition.name) == metrics.end())
    throw bad_rule(rule, fmt::format("'{}' is not a metric", condition.name),
                   fmt::format("metrics are {}", fmt::join(metrics, ", ")));
  return condition;
}

void parse_action(const std::string& rule, std::string action, AlertRule& result) {
  constexpr std::string_view kRun = "run:", kMail = "mail:";
  if (action.starts_with(kRun)) {
    result.target = preflight::trimmed(action.substr(kRun.size()));
  } else if (action.starts_with(kMail)) {
    result.action = AlertRule::Action::kMail;
    result.target = preflight::trimmed(action.substr(kMail.size()));
    const bool plain = result.target.find_first_of(" \t\r\n,;") == std::string::npos;
    if (!plain || result.target.find('@') == std::string::npos || result.target.starts_with('-'))
      throw bad_rule(rule, "the text after 'mail:' is not one mail address", "write mail:me@example.org");
  } else {
    result.action = AlertRule::Action::kWebhook;
    if (action.starts_with('$')) {
      const std::string variable = action.substr(1);
      const char* const value = std::getenv(variable.c_str());
      if (!value || !*value)
        throw bad_rule(rule, fmt::format("the environment variable '{}' is not set", variable),
                       "set it to the address of the webhook");
      action = value;
    }
    if (action.starts_with("https://"))
      throw bad_rule(rule, "the address needs encryption, which Primus cannot do",
                     "use run: with a program that can, such as run:curl --json @- https://...");
    if (!action.starts_with("http://"))
      throw bad_rule(rule, "the action is unknown",
                     "write run:COMMAND, http://HOST:PORT/PATH, $NAME or mail:ADDRESS");
    parse_http_url(action);
    result.target = std::move(action);
  }
  if (result.target.empty()) throw bad_rule(rule, "the action is empty", "write run:COMMAND");
}

}  // namespace

std::vector<std::string> alert_metrics() {
  std::vector<std::string> names;
  for (const Metric& metric : kMetrics) names.emplace_back(metric.name);
  return names;
}

std::optional<double> metric_of(const IterationRecord& record, std::string_view name) {
  for (const Metric& metric : kMetrics) {
    if (metric.name == name) return metric.value(record);
  }
  return std::nullopt;
}

std::string AlertRule::shown() const {
  switch (action) {
    case Action::kWebhook: {
      const HttpUrl url = parse_http_url(target);
      return fmt::format("the webhook at {}:{}", url.host, url.port);
    }
    case Action::kMail:
      return fmt::format("mail to {}", target);
    default:
      return fmt::format("the program '{}'", target.substr(0, target.find(' ')));
  }
}

AlertRule parse_alert(const std::string& text) {
  const std::size_t arrow = text.find("->");
  if (arrow == std::string::npos)
    throw bad_rule(text, "the arrow is missing",
                   "write WHEN -> ACTION, such as 'fault, slow_rank -> run:./notify.sh'");
  AlertRule rule{.text = text};
  for (const std::string& condition : preflight::split_text(text.substr(0, arrow), ',')) {
    if (!condition.empty()) rule.when.push_back(parse_condition(text, condition));
  }
  if (rule.when.empty()) throw bad_rule(text, "there is no condition", "write WHEN -> ACTION");
  parse_action(text, preflight::trimmed(text.substr(arrow + 2)), rule);
  return rule;
}

std::vector<AlertRule> parse_alerts(const std::vector<std::string>& texts) {
  std::vector<AlertRule> rules;
  for (const std::string& text : texts) rules.push_back(parse_alert(text));
  return rules;
}

const AlertCondition* matching(const AlertRule& rule, const RunEvent& event) {
  const auto fulfils = [&](const AlertCondition& condition) {
    if (condition.comparison != 0) return false;
    if (const auto* warning = event.as<RunWarning>())
      return condition.name == "warning" || condition.name == warning->detector;
    if (const auto* ending = event.as<RunEnding>()) {
      return condition.name == "end" ||
             (condition.name == "failed" && ending->state == RunEnding::State::kFailed) ||
             (condition.name == kGaveUpAlert && event.cause.starts_with(kGaveUpAlert)) ||
             (condition.name == "finished" && ending->state == RunEnding::State::kFinished);
    }
    const bool of_supervisor = event.cause == kRankLostAlert || event.cause == kNodeLostAlert;
    return condition.name == name_of(event.kind()) || (of_supervisor && condition.name == event.cause);
  };
  const auto found = std::ranges::find_if(rule.when, fulfils);
  return found == rule.when.end() ? nullptr : &*found;
}

}  // namespace primus::watch
