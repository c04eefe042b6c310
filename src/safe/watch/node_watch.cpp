#include "safe/watch/node_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/terminal/terminal.h"

namespace primus::watch {
namespace {

using Json = nlohmann::ordered_json;
using preflight::Finding;
using preflight::Verdict;

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Escapes a label of Prometheus.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

std::vector<std::string> drain_command(Drain drain, const std::string& node, const std::string& reason) {
  if (drain == Drain::kSlurm)
    return {"scontrol", "update", "nodename=" + node, "state=drain", "reason=primus watch: " + reason};
  // A taint's value has only letters and digits, so the reason is not part of it.
  return {"kubectl", "taint", "nodes", node, "primus/watch=unhealthy:NoSchedule", "--overwrite"};
}

NodeWatch::NodeWatch(std::shared_ptr<const preflight::Machine> machine, NodeWatchOptions options)
    : machine_(std::move(machine)), options_(std::move(options)) {
  if (options_.name.empty()) options_.name = machine_->node_name();
}

std::string NodeWatch::look() {
  last_ = preflight::inspect_node(machine_, options_.node);
  std::erase_if(last_.findings, [](const Finding& finding) {
    return std::ranges::find(kIdleChecks, finding.check) != std::end(kIdleChecks);
  });
  verdict_ = preflight::verdict_of(last_.findings);
  ++looks_;
  failures_ = verdict_ == Verdict::kFail ? failures_ + 1 : 0;
  Json findings = Json::array(), changed = Json::array();
  std::map<std::string, Verdict> verdicts;
  std::string reason;
  for (const Finding& finding : last_.findings) {
    const std::string key = finding.check + (finding.where.empty() ? "" : " " + finding.where);
    Verdict& worst = verdicts.try_emplace(key, finding.verdict).first->second;
    worst = std::max(worst, finding.verdict);
    if (finding.verdict < Verdict::kWarn) continue;
    if (finding.verdict == Verdict::kFail && reason.empty()) reason = finding.check + ": " + finding.measured;
    findings.push_back({{"check", finding.check},
                        {"verdict", name_of(finding.verdict)},
                        {"where", finding.where},
                        {"measured", finding.measured},
                        {"wanted", finding.wanted},
                        {"fix", finding.fix}});
  }
  for (const auto& [key, verdict] : verdicts) {
    const auto before = verdicts_.find(key);
    if (before != verdicts_.end() && before->second != verdict)
      changed.push_back({{"check", key}, {"from", name_of(before->second)}, {"to", name_of(verdict)}});
  }
  verdicts_ = std::move(verdicts);
  Json line{{"time", last_.wall_clock},        {"host", last_.host},
            {"verdict", name_of(verdict_)},    {"seconds", last_.seconds},
            {"findings", std::move(findings)}, {"changed", std::move(changed)}};
  if (const auto drained = drain(reason)) line["drain"] = Json::parse(*drained);
  return text_of(line);
}

std::optional<std::string> NodeWatch::drain(const std::string& reason) {
  if (options_.drain == Drain::kNone || drained_ || failures_ < options_.drain_after) return std::nullopt;
  // Control characters and quotes could end the reason within the scheduler.
  std::string plain;
  for (const char c : reason.substr(0, 200))
    plain += c >= ' ' && c != '"' && c != '\'' && c != '\\' ? c : ' ';
  const std::vector<std::string> command = drain_command(options_.drain, options_.name, plain);
  Json json{{"command", command}};
  if (options_.dry_run) {
    drained_ = true;
    json["dry_run"] = true;
    return text_of(json);
  }
  const SubprocessResult result = machine_->command(command);
  drained_ = result.ok();  // after a failure, the next look tries again
  if (!result.ok()) {
    json["error"] = !result.found      ? command[0] + " is not installed"
                    : result.timed_out ? "no answer in time"
                                       : preflight::first_line_of(result.err);
  }
  return text_of(json);
}

std::string NodeWatch::metrics() const {
  const std::string host = escaped(last_.host);
  std::string text;
  const auto metric = [&](const char* name, const char* help, const std::string& labels, double value) {
    if (text.find(fmt::format("# TYPE {} ", name)) == std::string::npos)
      text += fmt::format("# HELP {} {}\n# TYPE {} gauge\n", name, help, name);
    text += fmt::format("{}{{host=\"{}\"{}}} {}\n", name, host, labels, value);
  };
  if (looks_ == 0) return text;
  metric("primus_node_healthy", "1: no check failed in the last look.", "", verdict_ != Verdict::kFail);
  metric("primus_node_looks", "Looks since the start.", "", looks_);
  metric("primus_node_last_look_seconds", "Time of the last look, in seconds since 1970.", "",
         last_.wall_clock);
  metric("primus_node_drained", "1: this program has drained the node.", "", drained_);
  for (const auto& [key, verdict] : verdicts_) {
    const std::size_t space = key.find(' ');
    const std::string where = space == std::string::npos ? "" : key.substr(space + 1);
    metric("primus_node_check", "Verdict of a check: 0 passed, 1 skipped, 2 warns, 3 failed.",
           fmt::format(",check=\"{}\",where=\"{}\"", escaped(key.substr(0, space)), escaped(where)),
           static_cast<double>(verdict));
  }
  return text;
}

}  // namespace primus::watch
