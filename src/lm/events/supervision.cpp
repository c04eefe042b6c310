#include "lm/events/supervision.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

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
  constexpr double kShown = 0.0005;  // share of the wall time
  std::string text = fmt::format("useful {:.1f} % of {}", 100 * times.goodput(), human_duration(times.wall));
  std::string_view before = "; lost: ";
  for (const RunTimes::Part& part : RunTimes::lost()) {
    const double share = times.wall > 0 ? times.*part.seconds / times.wall : 0;
    if (share < kShown) continue;
    text += fmt::format("{}{} {:.1f} %", std::exchange(before, ", "), part.name, 100 * share);
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
    constexpr int kTried = 64;  // lines at the end that may be damaged
    for (int i = 0; i < kTried && lines.previous(line, offset); ++i) {
      if (!read_event(line, event) || !event.event.starts_with("supervise_")) continue;
      const Json facts = Json::parse(event.facts, nullptr, false);
      if (!facts.is_object()) continue;
      Supervision found;
      found.restarts = count_in(facts, "restarts");
      found.rank_restarts = count_in(facts, "rank_restarts");
      const auto times = facts.find("times");
      if (times != facts.end() && times->is_object()) found.times = times_in(*times);
      if (event.event == "supervise_end") found.ended = event.cause;
      return found;
    }
  } catch (const std::exception&) {
    // Primus did not write this file, or it was removed meanwhile.
  }
  return std::nullopt;
}

}  // namespace primus
