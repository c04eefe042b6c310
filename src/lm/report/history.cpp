#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/readers.h"
#include "lm/events/run_folder.h"
#include "lm/report/metrics_line.h"
#include "lm/report/report.h"

namespace primus {
namespace {

struct Line {
  std::int64_t iteration = 0;
  double samples = 0, milliseconds = 0;
  std::vector<std::pair<std::string, double>> numbers = {};
  std::string data_set = {};
};

bool is_position(std::string_view key) {
  return key == "iteration" || key == "consumed_samples" || key == "elapsed_time_per_iteration_ms";
}

// What no curve is drawn of: it is known from elsewhere in the line, or never changes.
bool is_passed_over(std::string_view key) {
  return key == "train_iters" || key == "global_batch_size" || key == "eta_seconds" ||
         key == "memory_total_bytes" || key.ends_with("_avg");
}

// `line` anew; false when it is none of ours. Strings are kept for the next line, which has the same keys.
bool parse(std::string_view text, Line& line) {
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

// Calls use(line) for each good line whose iteration does not go back, and notes how many were not.
template <typename Use>
void read_file_of(RunHistory& run, const char* name, std::int64_t least_advance, Use use) {
  const Path file = run.status.folder / name;
  std::error_code none;
  if (!std::filesystem::exists(file, none)) return;
  std::int64_t bad = 0, last = -1;
  Line line;
  try {
    read_lines(file, [&](std::string_view text) {
      if (!parse(text, line) || line.iteration < last + least_advance) {
        ++bad;
        return;
      }
      last = line.iteration;
      use(line);
    });
  } catch (const Error& error) {
    run.notes.emplace_back(error.what());
  }
  if (bad > 0) run.notes.push_back(fmt::format("{} lines of {} are damaged and left out", bad, name));
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

// "modules.pre_trainer.overrides.lr" is called "lr".
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

void read_settings(RunHistory& run) {
  const Path file = run.status.folder / RunFolder::kExperimentFile;
  std::error_code none;
  if (!std::filesystem::exists(file, none)) return;
  try {
    flatten(config::read_document(file), "", run.settings);
  } catch (const Error& error) {
    run.notes.push_back(fmt::format("its settings cannot be read: {}", error.what()));
  }
}

}  // namespace

RunHistory read_history(const Path& folder, std::size_t buckets) {
  RunHistory run{.status = run_status(folder),
                 .name = folder.string(),
                 .metrics = Curves(buckets),
                 .evaluations = Curves(buckets)};
  if (!run.status.problem.empty()) run.notes.push_back(run.status.problem);
  read_file_of(run, "metrics.jsonl", 1, [&](const Line& line) {
    if (std::isfinite(line.milliseconds)) run.seconds += 1e-3 * line.milliseconds;
    run.metrics.begin(line.iteration, line.samples, run.seconds);
    for (const auto& [key, value] : line.numbers) run.metrics.add(key, value);
  });
  read_file_of(run, "evaluations.jsonl", 0, [&](const Line& line) {
    const auto bits =
        std::ranges::find(line.numbers, "bits_per_byte", &std::pair<std::string, double>::first);
    for (const auto& [key, value] : line.numbers) {
      if (key != "lm_loss") continue;
      run.evaluations.begin(line.iteration, 0, 0);
      run.evaluations.add(line.data_set, value);
      if (bits != line.numbers.end() && line.data_set == "validation")
        run.evaluations.add("bits_per_byte", bits->second);
      const bool better = !run.best_validation || value < run.best_validation->second;
      if (line.data_set == "validation" && std::isfinite(value) && better) {
        run.best_validation = {line.iteration, value};
      }
    }
  });
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
    // One of them may be the folder that the others lie in.
    runs[i].name = name.empty() || name == "." ? folders[i].filename().string() : name.string();
  }
}

}  // namespace primus
