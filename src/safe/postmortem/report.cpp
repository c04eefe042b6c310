#include "safe/postmortem/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/text/html_page.h"
#include "lm/events/supervision.h"
#include "lm/report/run_list.h"

namespace primus::postmortem {
namespace {

using Row = std::pair<std::string, std::string>;

std::string local_time(double seconds, const char* format) {
  if (!(seconds > 0) || seconds > 1e11) return "-";
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm local{};
  localtime_r(&whole, &local);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), format, &local);
  return text.data();
}

std::string place(int rank, const std::string& node) {
  if (rank < 0) return node.empty() ? "unknown" : node;
  return node.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} on {}", rank, node);
}

// Returns a word of 'primus runs', such as "crashed (disk full)" or "restarting (lost rank); starts again in
// 8 s".
std::string state_of(const CaseFile& file) {
  std::string text = file.shown.state;
  if (!file.shown.reason.empty()) text += fmt::format(" ({})", file.shown.reason);
  if (!file.shown.next.empty()) text += "; " + file.shown.next;
  return text;
}

std::string lost_work(const CaseFile& file) {
  if (file.step == 0) return "none";
  if (file.saved_step < 0)
    return file.step == 1 ? "no checkpoint: the step" : fmt::format("no checkpoint: all {} steps", file.step);
  if (file.saved_step >= file.step) return "none";
  const std::int64_t lost = file.step - file.saved_step;
  return fmt::format("{} step{}, after the checkpoint of step {}", lost, lost == 1 ? "" : "s",
                     file.saved_step);
}

// The phases of ranks that did not record their end.
std::string last_work(const CaseFile& file) {
  std::string text;
  constexpr std::size_t kMost = 4;
  std::size_t shown = 0;
  for (const RankRecord& rank : file.ranks) {
    if (rank.ended || rank.phase.empty() || shown++ == kMost) continue;
    text += fmt::format("{}rank {}: {}", text.empty() ? "" : "; ", rank.rank, rank.phase);
  }
  return text;
}

// Such as "17:40:24 crashed (rank 1, step 404), continued from step 400".
std::string restart_text(const Restart& one) {
  const std::string rank = one.rank < 0 ? "" : fmt::format("rank {}, ", one.rank);
  const bool in_memory = one.state_from == "memory" || one.state_from == "partner";
  const char* const what = one.state_from.empty() ? "no step after the restart" : "continued";
  return fmt::format("{} {} ({}step {}), {} from step {}{}{}: {}", local_time(one.time, "%Y-%m-%d %H:%M:%S"),
                     one.cause, rank, one.step, what, one.checkpoint, in_memory ? " in memory" : "",
                     one.of_rank ? " by a rank restart" : "", one.text);
}

void add_restarts(const CaseFile& file, std::vector<Row>& rows) {
  constexpr std::size_t kShown = 5;
  if (file.restarts.empty()) return;
  const std::size_t count = file.restarts.size(), first = count > kShown ? count - kShown : 0;
  rows.emplace_back("restarts",
                    first > 0 ? fmt::format("{}, the last {}:", count, kShown) : fmt::format("{}:", count));
  for (std::size_t i = first; i < count; ++i) rows.emplace_back("", restart_text(file.restarts[i]));
}

// A run that waits or is restarted has a supervisor. No command is needed then.
std::string advice(const CaseFile& file, const Cause& cause) {
  if (file.shown.next.empty()) return std::string(cause.next_step);
  const bool waits = file.shown.state == name_of(RunState::kWaiting);
  const char* const what = waits ? "waits, and then continues the run" : "continues the run";
  const std::string_view rest = cause.supervised.value_or(cause.next_step);
  return rest.empty() ? fmt::format("the supervisor {}.", what)
                      : fmt::format("the supervisor {}; {}", what, rest);
}

std::vector<Row> facts(const CaseFile& file, const Diagnosis& d) {
  std::vector<Row> rows = {{"run", file.run}, {"state", state_of(file)}};
  if (file.running || (file.state == "finished" && d.confidence == Confidence::kNone)) {
    add_restarts(file, rows);
    return rows;
  }
  rows.emplace_back("cause", fmt::format("{} ({})", d.cause->title, d.cause->name));
  rows.emplace_back("confidence", fmt::format("{}: {}", name_of(d.confidence), explanation_of(d.confidence)));
  if (d.cause->role != Role::kStop) rows.emplace_back("where", place(d.rank, d.node));
  constexpr const char* kTime = "%Y-%m-%d %H:%M:%S";
  if (d.first_sign > 0) rows.emplace_back("first sign", local_time(d.first_sign, kTime));
  if (d.last_event > 0)
    rows.emplace_back("last event",
                      fmt::format("{}, after step {}", local_time(d.last_event, kTime), file.step));
  if (!d.summary.empty()) rows.emplace_back("evidence", d.summary);
  if (const std::string work = last_work(file); !work.empty()) rows.emplace_back("last work", work);
  rows.emplace_back("lost work", lost_work(file));
  rows.emplace_back("next step", advice(file, *d.cause));
  for (const Cause* other : d.alternatives)
    rows.emplace_back("or", fmt::format("{} ({})", other->title, other->name));
  add_restarts(file, rows);
  return rows;
}

std::string origin(const Evidence& one) {
  return one.line > 0 ? fmt::format("{}:{}", one.file, one.line) : one.file;
}

}  // namespace

std::string report_text(const CaseFile& file, const Diagnosis& diagnosis, const Terminal& terminal) {
  std::string text;
  for (const auto& [name, value] : facts(file, diagnosis))
    text += paint(terminal, Color::kBold, fmt::format("{:<11}", name)) + value + "\n";
  if (!diagnosis.timeline.empty()) text += "\n";
  for (const Evidence& one : diagnosis.timeline) {
    text += fmt::format("{:<8}  {:<9}  {}\n{:10}{}\n", local_time(one.time, "%H:%M:%S"), name_of(one.source),
                        paint(terminal, Color::kDim, origin(one)), "", one.text);
  }
  for (const std::string& note : file.notes) text += "note: " + note + "\n";
  return text;
}

std::string report_page(const CaseFile& file, const Diagnosis& diagnosis, const std::string& generator) {
  std::vector<std::vector<std::string>> rows, timeline;
  for (const auto& [name, value] : facts(file, diagnosis)) rows.push_back({name, value});
  for (const Evidence& one : diagnosis.timeline) {
    timeline.push_back({local_time(one.time, "%Y-%m-%d %H:%M:%S"), std::string(name_of(one.source)),
                        place(one.rank, one.node), one.text, origin(one)});
  }
  std::string body = html_table({"", ""}, rows);
  body += "<h2>Evidence</h2>" + html_table({"time", "source", "where", "text", "file"}, timeline);
  for (const std::string& note : file.notes) body += "<p>" + html_escaped(note) + "</p>";
  return html_page("Post-mortem of " + file.run, generator, body);
}

nlohmann::ordered_json report_json(const CaseFile& file, const Diagnosis& d) {
  using Json = nlohmann::ordered_json;
  Json json{{"run", file.run},
            {"state", file.shown.state},
            {"reason", file.shown.reason},
            {"next", file.shown.next},
            {"cause", d.cause->name},
            {"title", d.cause->title},
            {"confidence", name_of(d.confidence)},
            {"rank", d.rank < 0 ? Json() : Json(d.rank)},
            {"node", d.node.empty() ? Json() : Json(d.node)},
            {"first_sign", d.first_sign > 0 ? Json(d.first_sign) : Json()},
            {"last_event", d.last_event > 0 ? Json(d.last_event) : Json()},
            {"step", file.step},
            {"checkpoint_step", file.saved_step < 0 ? Json() : Json(file.saved_step)},
            {"text", d.summary},
            {"next_step", advice(file, *d.cause)},
            {"alternatives", Json::array()},
            {"restarts", Json::array()},
            {"evidence", Json::array()},
            {"notes", file.notes}};
  for (const Cause* other : d.alternatives) json["alternatives"].push_back(other->name);
  for (const Restart& one : file.restarts) {
    json["restarts"].push_back({{"time", one.time},
                                {"step", one.step},
                                {"rank", one.rank < 0 ? Json() : Json(one.rank)},
                                {"cause", one.cause},
                                {"text", one.text},
                                {"checkpoint_step", one.checkpoint},
                                {"rung", std::string(one.of_rank ? kRankRestart : kJobRestart)},
                                {"state_from", one.state_from.empty() ? Json() : Json(one.state_from)}});
  }
  for (const Evidence& one : d.timeline) {
    json["evidence"].push_back({{"time", one.time > 0 ? Json(one.time) : Json()},
                                {"source", name_of(one.source)},
                                {"cause", one.cause ? Json(one.cause->name) : Json()},
                                {"rank", one.rank < 0 ? Json() : Json(one.rank)},
                                {"node", one.node.empty() ? Json() : Json(one.node)},
                                {"text", one.text},
                                {"file", one.file},
                                {"line", one.line > 0 ? Json(one.line) : Json()}});
  }
  return json;
}

}  // namespace primus::postmortem
