#include "lm/events/supervision.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/json_reader.h"
#include "lm/events/event_log.h"
#include "lm/events/line_file.h"

namespace primus {
namespace {

using Json = nlohmann::ordered_json;

double seconds_in(const Json& json, std::string_view key) {
  const auto found = json.find(key);
  const double value = found != json.end() && found->is_number() ? found->get<double>() : 0;
  return std::isfinite(value) && value > 0 ? value : 0;
}

std::int64_t count_in(const Json& json, std::string_view key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_unsigned() ? found->get<std::int64_t>() : 0;
}

std::string key_of(std::string_view name) {
  std::string key(name);
  for (char& c : key) c = c == ' ' ? '_' : c;
  return key;
}

RunTimes times_in(const Json& json) {
  RunTimes times{.wall = seconds_in(json, "wall"), .useful = seconds_in(json, "useful")};
  for (const RunTimes::Part& part : RunTimes::lost())
    times.*part.seconds = seconds_in(json, key_of(part.name));
  return times;
}

// Returns the parts in tenths of a percent of their sum. They add up to 1000: the parts with the largest
// remainders are rounded up.
std::vector<int> tenths_of_percent(const std::vector<double>& parts) {
  constexpr int kAll = 1000;
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  std::vector<int> tenths(parts.size(), 0);
  if (!(sum > 0)) return tenths;
  std::vector<std::pair<double, std::size_t>> rests;
  int left = kAll;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double exact = kAll * (parts[i] / sum);
    tenths[i] = static_cast<int>(exact);
    left -= tenths[i];
    rests.emplace_back(tenths[i] - exact, i);
  }
  std::ranges::sort(rests);
  for (int i = 0; i < left; ++i) ++tenths[rests[static_cast<std::size_t>(i) % rests.size()].second];
  return tenths;
}

// Whether an action is a restart; reads when and on what it waits.
std::optional<PendingRestart> restart_in(const EventLine& event, const Json& facts) {
  if (facts.value("action", Json()) != "restart") return std::nullopt;
  PendingRestart restart{.fault = std::string(event.cause), .at = event.time + seconds_in(facts, "delay")};
  if (const auto bytes = count_in(facts, "needs_free_bytes"); bytes > 0)
    restart.free_bytes = static_cast<std::uint64_t>(bytes);
  if (const auto job = facts.find("supervisor"); job != facts.end())
    restart.supervisor = job_from_json(job->dump());
  return restart;
}

Supervision newest_state(const EventLine& event, const Json& facts) {
  Supervision found{.restarts = count_in(facts, "restarts"),
                    .rank_restarts = count_in(facts, "rank_restarts"),
                    .time = event.time};
  const auto times = facts.find("times");
  if (times != facts.end() && times->is_object()) found.times = times_in(*times);
  if (event.event == "supervise_end") found.ended = event.cause;
  return found;
}

std::string text_in(const Json& facts) {
  const auto found = facts.find("text");
  return found != facts.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

const std::vector<RunTimes::Part>& RunTimes::lost() {
  static const std::vector<Part> parts = {{"repeated steps", &RunTimes::repeated},
                                          {"detection", &RunTimes::detection},
                                          {"restart", &RunTimes::restart},
                                          {"start-up", &RunTimes::startup},
                                          {"checkpoints", &RunTimes::checkpoints},
                                          {"evaluations and samples", &RunTimes::phases},
                                          {"other", &RunTimes::other}};
  return parts;
}

std::string describe(const RunTimes& times) {
  std::vector<double> seconds{times.useful};
  for (const RunTimes::Part& part : RunTimes::lost()) seconds.push_back(times.*part.seconds);
  const std::vector<int> tenths = tenths_of_percent(seconds);
  const auto percent = [&](std::size_t i) { return fmt::format("{}.{} %", tenths[i] / 10, tenths[i] % 10); };
  std::string text = fmt::format("useful {} of {}", percent(0), human_duration(times.wall));
  std::string_view before = "; lost: ";
  for (std::size_t i = 1; i < tenths.size(); ++i) {
    if (tenths[i] == 0) continue;
    text += fmt::format("{}{} {}", std::exchange(before, ", "), RunTimes::lost()[i - 1].name, percent(i));
  }
  return text;
}

std::string to_json(const RunTimes& times) {
  const auto rounded = [](double seconds) { return std::round(seconds * 1e3) / 1e3; };
  Json json{{"wall", rounded(times.wall)}, {"useful", rounded(times.useful)}};
  for (const RunTimes::Part& part : RunTimes::lost()) json[key_of(part.name)] = rounded(times.*part.seconds);
  return json.dump();
}

Path supervision_file(const Path& run) { return run / kEventsFolder / "supervisor.jsonl"; }

std::optional<Supervision> read_supervision(const Path& run) {
  const Path path = supervision_file(run);
  try {
    if (!Env::posix().status(path)) return std::nullopt;
    const auto file = Env::posix().open(path, OpenMode::kRead);
    LinesBackward lines(*file);
    std::string_view line;
    std::uint64_t offset = 0;
    EventLine event;
    constexpr int kTried = 64;  // lines at the end that may be damaged, or about machines
    std::optional<Supervision> found;
    for (int i = 0; i < kTried && lines.previous(line, offset); ++i) {
      if (!read_event(line, event) || !event.event.starts_with("supervise_")) continue;
      const Json facts = Json::parse(event.facts, nullptr, false);
      if (!facts.is_object()) continue;
      if (!found) found = newest_state(event, facts);
      if (event.event == "supervise_node" || event.event == "supervise_end") continue;
      if (event.event == "supervise_action" && !found->ended.empty()) {
        if (facts.value("action", Json()) == "give up") found->text = text_in(facts);
        return found;
      }
      if (event.event == "supervise_action" && !found->pending) {
        found->pending = restart_in(event, facts);
        if (found->pending) continue;
      }
      if (event.event == "supervise_detection" && found->pending) {
        found->pending->fault = event.cause;
        found->pending->text = text_in(facts);
      }
      return found;
    }
    return found;
  } catch (const std::exception&) {
    // Primus did not write this file, or it was removed meanwhile.
  }
  return std::nullopt;
}

}  // namespace primus
