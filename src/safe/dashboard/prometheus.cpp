#include "safe/dashboard/prometheus.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <optional>

#include "lm/events/supervision.h"

namespace primus::dashboard {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

struct Metric {
  const char *name, *help;
  std::function<std::optional<double>(const Run&)> value;
};

const Metric kMetrics[] = {
    {"primus_run_step", "Completed steps of the run.",
     [](const Run& run) { return static_cast<double>(run.status.step); }},
    {"primus_run_planned_steps", "Steps of the complete run.",
     [](const Run& run) -> std::optional<double> {
       if (!run.status.steps) return std::nullopt;
       return static_cast<double>(*run.status.steps);
     }},
    {"primus_run_loss", "Loss of the newest step, in nats per token.",
     [](const Run& run) { return run.status.loss; }},
    {"primus_run_validation_loss", "Loss of the newest evaluation on validation data.",
     [](const Run& run) { return run.status.validation_loss; }},
    {"primus_run_tokens_per_second_per_device", "Tokens per second and device.",
     [](const Run& run) { return run.status.tokens_per_second; }},
    {"primus_run_warnings", "Findings of detectors.",
     [](const Run& run) { return static_cast<double>(run.status.warnings.size()); }},
    {"primus_run_age_seconds", "Seconds since the run's files last changed.",
     [](const Run& run) { return run.status.age_seconds; }},
    {"primus_run_restarts", "Restarts by the supervisor.",
     [](const Run& run) -> std::optional<double> {
       if (!run.status.supervision) return std::nullopt;
       return static_cast<double>(run.status.supervision->restarts);
     }},
    {"primus_run_goodput", "Share of the supervised time that was used for steps whose result is kept, 0..1.",
     [](const Run& run) -> std::optional<double> {
       if (!run.status.supervision) return std::nullopt;
       return run.status.supervision->goodput();
     }},
};

}  // namespace

std::string prometheus_text(const std::map<std::string, Run>& runs) {
  std::string text;
  for (const Metric& metric : kMetrics) {
    std::string lines;
    for (const auto& [id, run] : runs) {
      if (const auto value = metric.value(run))
        lines += fmt::format("{}{{run=\"{}\"}} {}\n", metric.name, escaped(run.name), number(*value));
    }
    if (!lines.empty())
      text += fmt::format("# HELP {0} {1}\n# TYPE {0} gauge\n{2}", metric.name, metric.help, lines);
  }
  if (runs.empty()) return text;
  text += "# HELP primus_run_state 1 for the state of the run, else 0.\n# TYPE primus_run_state gauge\n";
  for (const auto& [id, run] : runs) {
    for (const RunState state : run_states())
      text += fmt::format("primus_run_state{{run=\"{}\",state=\"{}\"}} {}\n", escaped(run.name),
                          name_of(state), run.status.state == state ? 1 : 0);
  }
  text += "# HELP primus_run_lost_seconds Lost time of a supervised run, by cause.\n";
  text += "# TYPE primus_run_lost_seconds gauge\n";
  for (const auto& [id, run] : runs) {
    if (!run.status.supervision) continue;
    for (const RunTimes::Part& part : RunTimes::lost())
      text += fmt::format("primus_run_lost_seconds{{run=\"{}\",cause=\"{}\"}} {}\n", escaped(run.name),
                          escaped(part.name), number(run.status.supervision->times.*part.seconds));
  }
  return text;
}

}  // namespace primus::dashboard
