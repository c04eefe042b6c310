#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text/counted.h"
#include "config/readers.h"
#include "lm/events/run_folder.h"
#include "lm/report/history_reader.h"
#include "lm/report/metrics_line.h"
#include "lm/report/report.h"
#include "lm/report/run_records.h"
#include "lm/report/written_texts.h"

namespace primus {
namespace {

bool is_position(std::string_view key) {
  return key == "iteration" || key == "consumed_samples" || key == "elapsed_time_per_iteration_ms";
}

// Returns whether the key gets no curve, because its values are elsewhere in the line or never change.
bool is_passed_over(std::string_view key) {
  return key == "train_iters" || key == "global_batch_size" || key == "eta_seconds" ||
         key == "memory_total_bytes" || key.ends_with("_avg");
}

// Parses a line into `line`; returns false if the text is invalid. Reuses the strings of the previous line,
// which usually has the same keys.
bool parse(std::string_view text, HistoryReader::Line& line) {
  std::size_t count = 0;
  const bool good = read_metrics_line(
      text,
      [&](std::string_view key, double value) {
        if (key == "iteration") line.iteration = static_cast<std::int64_t>(value);
        if (key == "consumed_samples") line.samples = value;
        if (key == "elapsed_time_per_iteration_ms") line.milliseconds = value;
        if (is_position(key) || is_passed_over(key)) return;
        if (count == line.numbers.size()) line.numbers.emplace_back();
        line.numbers[count].first.assign(key);
        line.numbers[count++].second = value;
      },
      &line.data_set);
  line.numbers.resize(count);
  return good;
}

std::string damaged(std::string_view name, std::int64_t lines) {
  return fmt::format("{} of {} {} damaged and skipped", counted(lines, "line"), name,
                     lines == 1 ? "was" : "were");
}

std::string text_of(const config::Value& value) {
  if (value.is_scalar()) return value.is_null() ? "null" : value.text;
  std::string text;
  if (value.is_list()) {
    for (const config::Value& item : value.items) text += (text.empty() ? "" : ", ") + text_of(item);
    return "[" + text + "]";
  }
  for (const config::Member& member : value.members) {
    text += (text.empty() ? "" : ", ") + member.key + ": " + text_of(member.value);
  }
  return "{" + text + "}";
}

// Shortens "modules.pre_trainer.overrides.lr" to "lr".
void flatten(const config::Value& value, const std::string& name, std::map<std::string, std::string>& out) {
  if (!value.is_map() || value.members.empty()) {
    out[name] = text_of(value);
    return;
  }
  for (const config::Member& member : value.members) {
    const bool structure =
        name == "modules" || (name.empty() && member.key == "modules") || member.key == "overrides";
    const std::string inner = structure      ? (member.key == "modules" ? "modules" : "")
                              : name.empty() ? member.key
                                             : name + "." + member.key;
    flatten(member.value, inner, out);
  }
}

}  // namespace

const HistoryReader::Line* HistoryReader::next(std::string_view text, std::int64_t min_advance, Kind& kind) {
  if (!parse(text, line_) || line_.iteration < kind.last + min_advance) {
    ++kind.bad;
    return nullptr;
  }
  kind.last = line_.iteration;
  return &line_;
}

void HistoryReader::step(std::string_view text) {
  const Line* const line = next(text, 1, steps_);
  if (!line || line->iteration < from_ || line->iteration > to_) return;
  if (std::isfinite(line->milliseconds)) run_.seconds += 1e-3 * line->milliseconds;
  run_.metrics.begin(line->iteration, line->samples, run_.seconds);
  for (const auto& [key, value] : line->numbers) run_.metrics.add(key, value);
}

void HistoryReader::evaluation(std::string_view text) {
  const Line* const line = next(text, 0, evaluations_);
  if (!line) return;
  const auto bits = std::ranges::find(line->numbers, "bits_per_byte", &std::pair<std::string, double>::first);
  for (const auto& [key, value] : line->numbers) {
    if (key != "lm_loss") continue;
    run_.evaluations.begin(line->iteration, 0, 0);
    run_.evaluations.add(line->data_set, value);
    if (bits != line->numbers.end() && line->data_set == "validation")
      run_.evaluations.add("bits_per_byte", bits->second);
    const bool better = !run_.best_validation || value < run_.best_validation->second;
    if (line->data_set == "validation" && std::isfinite(value) && better)
      run_.best_validation = {line->iteration, value};
  }
}

void read_settings(RunHistory& run) {
  run.settings.clear();
  try {
    const std::optional<std::string> text = recorded_experiment(run.status.folder);
    if (!text) return;
    const Path file = run.status.folder / RunFolder::kExperimentFile;
    flatten(config::read_document(config::make_source(file.string(), *text)), "", run.settings);
  } catch (const Error& error) {
    run.notes.push_back(fmt::format("its settings cannot be read: {}", error.what()));
  }
}

RunHistory read_history(const Path& folder, std::size_t buckets) {
  RunHistory run{.status = run_status(folder),
                 .name = folder.string(),
                 .metrics = Curves(buckets),
                 .evaluations = Curves(buckets)};
  if (!run.status.problem.empty()) run.notes.push_back(run.status.problem);
  HistoryReader reader(run);
  try {
    read_records(
        folder, [&](std::string_view line) { reader.step(line); },
        [&](std::string_view line) { reader.evaluation(line); },
        [&](std::string_view name, std::int64_t lines) { run.notes.push_back(damaged(name, lines)); });
    std::int64_t bad_texts = 0;
    run.texts = newest_texts(folder / RunFolder::kSamplesFile, bad_texts);
    if (bad_texts > 0) run.notes.push_back(damaged(RunFolder::kSamplesFile, bad_texts));
  } catch (const Error& error) {
    run.notes.emplace_back(error.what());
  }
  if (reader.bad_steps() > 0) run.notes.push_back(damaged("metrics.jsonl", reader.bad_steps()));
  if (reader.bad_evaluations() > 0)
    run.notes.push_back(damaged("evaluations.jsonl", reader.bad_evaluations()));
  read_settings(run);
  return run;
}

void name_runs(std::vector<RunHistory>& runs) {
  std::vector<Path> folders;
  for (const RunHistory& run : runs) {
    std::error_code none;
    folders.push_back(std::filesystem::absolute(run.status.folder, none).lexically_normal());
    if (!folders.back().has_filename()) folders.back() = folders.back().parent_path();
  }
  Path common = folders.empty() ? Path() : folders[0].parent_path();
  for (const Path& folder : folders) {
    const auto ends = std::mismatch(common.begin(), common.end(), folder.begin(), folder.end());
    Path shared;
    for (auto part = common.begin(); part != ends.first; ++part) shared /= *part;
    common = shared;
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Path name = folders[i].lexically_relative(common);
    // If the common folder is a run, too, the relative path of this run is ".".
    runs[i].name = name.empty() || name == "." ? folders[i].filename().string() : name.string();
  }
}

}  // namespace primus
