#include "safe/dashboard/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/json_text.h"
#include "lm/events/supervision.h"
#include "lm/report/page_files.h"
#include "lm/report/report.h"
#include "safe/dashboard/page_files.h"
#include "safe/dashboard/prometheus.h"
#include "safe/dashboard/run_events.h"
#include "safe/dashboard/timelines.h"

namespace primus::dashboard {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr auto kSlice = std::chrono::milliseconds(20);
constexpr auto kPause = std::chrono::milliseconds(100);
constexpr auto kPublishPause = std::chrono::milliseconds(500);

Reply json(const Json& value) {
  return {.type = "application/json; charset=utf-8", .body = json_text(value, -1) + "\n"};
}

Reply not_found(const std::string& text) { return {.status = 404, .body = text + "\n"}; }

Json number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json();
}

Json summary(const Run& run) {
  const RunStatus& status = run.status;
  Json json{{"id", run.id},
            {"name", run.name},
            {"folder", status.folder.string()},
            {"state", name_of(status.state)},
            {"reason", status.reason},
            {"failure", status.failure},
            {"next", status.next},
            {"problem", status.problem},
            {"step", status.step},
            {"steps", status.steps ? Json(*status.steps) : Json()},
            {"loss", number(status.loss)},
            {"validation_loss", number(status.validation_loss)},
            {"tokens_per_second_per_device", number(status.tokens_per_second)},
            {"age_seconds", status.age_seconds},
            {"warnings", status.warnings.size()},
            {"newest_event", run.newest_event}};
  if (status.loss && !std::isfinite(*status.loss))
    json["loss_text"] = std::isnan(*status.loss) ? "NaN" : "infinite";
  json["restarts"] = status.supervision ? Json(status.supervision->restarts) : Json();
  json["goodput"] = status.supervision ? number(status.supervision->goodput()) : Json();
  json["version"] = run.version;
  return json;
}

constexpr std::int64_t kMaxStep = std::int64_t{1} << 53;  // numbers in JavaScript are exact up to here

// Returns a step of the request; nullopt: the request has no such parameter.
std::optional<std::int64_t> step_in(const Request& request, const char* name) {
  const auto found = request.query.find(name);
  if (found == request.query.end()) return std::nullopt;
  const std::string& text = found->second;
  std::int64_t value = -1;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size() || value < 0 || value > kMaxStep)
    throw invalid(fmt::format("'{}' is not a step: give a whole number from 0 to {}", name, kMaxStep));
  return value;
}

std::int64_t needed_step(const Request& request, const char* name) {
  const auto step = step_in(request, name);
  if (!step) throw invalid(fmt::format("'{}' is missing: give a step", name));
  return *step;
}

// The request names a run that is not listed.
struct UnknownRun {};

}  // namespace

std::vector<Run*> Service::named(const Request& request) {
  std::vector<Run*> runs;
  const auto found = request.query.find("runs");
  std::string_view ids = found == request.query.end() ? std::string_view() : found->second;
  while (!ids.empty()) {
    const std::string id(ids.substr(0, ids.find(',')));
    ids.remove_prefix(std::min(ids.size(), id.size() + 1));
    Run* const run = workspace_.find(id);
    if (!run) throw UnknownRun();
    if (std::ranges::find(runs, run) == runs.end()) runs.push_back(run);
  }
  if (runs.empty() || runs.size() > kMaxCompared)
    throw invalid(fmt::format("'runs' takes the ids of 1 to {} runs, separated by commas", kMaxCompared));
  return runs;
}

Run& Service::one(const Request& request) {
  const auto found = request.query.find("run");
  if (found == request.query.end()) throw invalid("'run' is missing: give the id of a run");
  Run* const run = workspace_.find(found->second);
  if (!run) throw UnknownRun();
  return *run;
}

Reply Service::runs() const {
  Json list = Json::array();
  for (const auto& [id, run] : workspace_.runs()) list.push_back(summary(run));
  return json({{"version", version_}, {"notes", workspace_.notes()}, {"runs", std::move(list)}});
}

Reply Service::report(const Request& request) {
  const std::vector<Run*> runs = named(request);
  std::vector<RunHistory> histories;
  for (Run* const run : runs) {
    histories.push_back(workspace_.view(*run).history());
    histories.back().status = run->status;
    histories.back().name = run->name;
  }
  Json report = report_json(histories, "", version_);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    report["runs"][i]["id"] = runs[i]->id;
    report["runs"][i]["progress"] = runs[i]->index->progress();
    report["runs"][i]["version"] = runs[i]->version;
  }
  return json(report);
}

Reply Service::range(const Request& request) {
  const std::vector<Run*> runs = named(request);
  const std::int64_t from = needed_step(request, "from"), to = needed_step(request, "to");
  if (from > to) throw invalid("'from' is after 'to'");
  Json list = Json::array();
  for (Run* const run : runs) {
    const RunIndex::Range part = workspace_.view(*run).range(from, to);
    if (!part.run) {
      list.push_back({{"problem", part.problem}});
      continue;
    }
    const Json whole = report_json({*part.run}, "", version_);
    const Json& only = whole["runs"][0];
    list.push_back({{"positions", only["positions"]},
                    {"steps_per_point", only["steps_per_point"]},
                    {"curves", only["curves"]}});
  }
  return json({{"runs", std::move(list)}});
}

Reply Service::events(const Request& request) {
  const Run& run = one(request);
  return json({{"id", run.id}, {"events", events_json(run.status.folder)}});
}

Reply Service::ranks(const Request& request) {
  Run& run = one(request);
  workspace_.view(run);
  Json table = workspace_.view_ranks(run).json();
  table["id"] = run.id;
  return json(table);
}

Reply Service::timeline(const Request& request) {
  const Run& run = one(request);
  const auto step = step_in(request, "step");
  Json table = timelines_json(run.status.folder, step);
  table["id"] = run.id;
  return json(table);
}

Reply Service::answer(const Request& request) {
  try {
    const std::string& path = request.path;
    if (path == "/") return {.type = "text/html; charset=utf-8", .body = std::string(k_dashboard_html)};
    if (path == "/dashboard.css")
      return {.type = "text/css; charset=utf-8",
              .body = std::string(k_page_css) + std::string(k_dashboard_css)};
    if (path == "/dashboard.js")
      return {.type = "text/javascript; charset=utf-8",
              .body = "'use strict';\n" + std::string(k_charts_js) + std::string(k_timeline_js) +
                      std::string(k_dashboard_js)};
    if (path == "/api/runs") return runs();
    if (path == "/api/report") return report(request);
    if (path == "/api/range") return range(request);
    if (path == "/api/events") return events(request);
    if (path == "/api/ranks") return ranks(request);
    if (path == "/api/timeline") return timeline(request);
    if (path == "/api/stream")
      return {.type = "text/event-stream", .body = "retry: 2000\n\n", .stream = true};
    if (path == "/metrics")
      return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = prometheus_text(workspace_.runs())};
    return not_found("there is no such page");
  } catch (const Error& error) {
    return {.status = 400, .body = std::string(error.what()) + "\n"};
  } catch (const UnknownRun&) {
    return not_found("there is no run with this id; /api/runs lists the ids");
  }
}

std::chrono::milliseconds Service::work(HttpServer& server) {
  const Workspace::Work work = workspace_.work(kSlice);
  changed_.insert(changed_.end(), work.changed.begin(), work.changed.end());
  removed_.insert(removed_.end(), work.removed.begin(), work.removed.end());
  const auto now = Clock::now();
  if ((!changed_.empty() || !removed_.empty()) && now - published_ >= kPublishPause) {
    published_ = now;
    std::ranges::sort(changed_);
    const auto again = std::ranges::unique(changed_);
    changed_.erase(again.begin(), again.end());
    for (const std::string& id : changed_) {
      if (const Run* const run = workspace_.find(id)) server.publish("run", json_text(summary(*run), -1));
    }
    for (const std::string& id : removed_) server.publish("removed", json_text(Json{{"id", id}}, -1));
    changed_.clear();
    removed_.clear();
  }
  // While records are left to read, the server only answers waiting requests in between.
  return work.more ? std::chrono::milliseconds(0) : kPause;
}

}  // namespace primus::dashboard
