#include "lm/report/run_records.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/json_reader.h"
#include "lm/events/event_log.h"
#include "lm/events/line_file.h"
#include "lm/events/run_folder.h"

namespace primus {
namespace {

constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kEvaluations = "evaluations.jsonl";
constexpr std::uint64_t kMaxExperiment = 1 << 20;

bool is_there(const Path& path) {
  std::error_code none;
  return std::filesystem::exists(std::filesystem::status(path, none));
}

// Returns the settings in a `begin` event, and whether its process trained.
std::pair<std::optional<std::string>, bool> experiment_in(std::string_view facts) {
  std::optional<std::string> text;
  bool trains = true;
  JsonReader json(facts, "event");
  json.object([&](std::string_view key) {
    if (key == "experiment" && json.peek() == JsonReader::Kind::kString) {
      text = json.read_string();
    } else if (key == "trains" && json.peek() == JsonReader::Kind::kBool) {
      trains = json.read_bool();
    } else {
      json.skip();
    }
  });
  return {std::move(text), trains};
}

}  // namespace

std::optional<Path> events_of(const Path& run) {
  Path file = event_file(run, 0);
  if (!is_there(file)) return std::nullopt;
  std::optional<std::int64_t> began;
  read_rare_events(file, [&](const EventLine& event) {
    if (event.event == "begin") began = event.step;
    return began != 0;
  });
  // An older version of Primus trained the first steps, so the records are in the files of that version.
  if (!began || (*began > 0 && is_there(run / kMetrics))) return std::nullopt;
  return file;
}

Path steps_file(const Path& run) { return events_of(run).value_or(run / kMetrics); }

void read_records(const Path& run, const RecordFn& step, const RecordFn& evaluation,
                  const std::function<void(std::string_view, std::int64_t)>& damaged) {
  if (const auto events = events_of(run)) {
    const std::int64_t bad = read_events(*events, [&](const EventLine& event) {
      if (event.event == "step") step(event.facts);
      if (event.event == "evaluation") evaluation(event.facts);
    });
    if (bad > 0 && damaged) damaged(fmt::format("{}/{}", kEventsFolder, events->filename().string()), bad);
    return;
  }
  if (is_there(run / kMetrics)) read_lines(run / kMetrics, step);
  if (is_there(run / kEvaluations)) read_lines(run / kEvaluations, evaluation);
}

std::optional<std::string> recorded_experiment(const Path& run) {
  if (const auto events = events_of(run)) {
    std::optional<std::string> found;
    read_rare_events(*events, [&](const EventLine& event) {
      if (event.event != "begin") return true;
      auto [text, trained] = experiment_in(event.facts);
      if (text && (trained || !found)) found = std::move(text);
      return !(found && trained);
    });
    return found;
  }
  const Path file = run / RunFolder::kExperimentFile;
  if (!is_there(file)) return std::nullopt;
  return read_file(file, kMaxExperiment);
}

}  // namespace primus
