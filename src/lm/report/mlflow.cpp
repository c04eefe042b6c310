#include "lm/report/mlflow.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files/sha256.h"
#include "base/text/json_text.h"
#include "config/readers.h"
#include "lm/report/metrics_line.h"
#include "lm/report/report.h"
#include "lm/report/run_records.h"

namespace primus {
namespace {

// Returns whether the name may be a file name in the exported folder. MLflow allows more characters.
bool is_plain(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.size() <= 250 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

// Returns whether the key is left out, because it never changes or is derived from other keys.
bool is_left_out(std::string_view key) {
  return key == "iteration" || key == "train_iters" || key == "global_batch_size" || key == "eta_seconds" ||
         key == "memory_total_bytes" || key.ends_with("_avg");
}

std::string yaml_text(const std::string& text) { return json_text(nlohmann::json(text), -1); }

// Returns the text on one line, because params and tags are one-line files.
std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

std::string number(double value) {
  return std::isnan(value)   ? "nan"
         : std::isinf(value) ? (value < 0 ? "-inf" : "inf")
                             : fmt::format("{}", value);
}

std::int64_t last_change_ms(const Path& file) {
  const auto time = std::chrono::file_clock::to_sys(std::filesystem::last_write_time(file));
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

// Replaces a file unless its content is the same.
void put(const Path& file, const std::string& content) {
  const auto status = Env::posix().status(file);
  if (status && status->type == FileStatus::Type::kFile && status->size == content.size() &&
      read_file(file, content.size() + 1) == content) {
    return;
  }
  write_file_atomic(file, content);
}

// The time at which each step ended.
struct Times {
  std::int64_t start = 0, end = 0;  // start and end of the run, in milliseconds since 1970
  // Pairs of an iteration and its end in milliseconds since the start.
  std::vector<std::pair<std::int64_t, double>> steps = {};

  std::int64_t at(std::int64_t iteration) const {
    const auto next = std::ranges::upper_bound(steps, iteration, {}, &std::pair<std::int64_t, double>::first);
    return start + (next == steps.begin() ? 0 : std::llround(std::prev(next)->second));
  }
};

Times times_of(const Path& folder) {
  Times times;
  double sum = 0;
  const auto step = [&](std::string_view line) {
    std::int64_t iteration = -1;
    double milliseconds = 0;
    const bool good = read_metrics_line(line, [&](std::string_view key, double value) {
      if (key == "iteration") iteration = static_cast<std::int64_t>(value);
      if (key == "elapsed_time_per_iteration_ms" && std::isfinite(value)) milliseconds = value;
    });
    if (!good || (!times.steps.empty() && iteration <= times.steps.back().first)) return;
    sum += milliseconds;
    times.steps.emplace_back(iteration, sum);
  };
  read_records(folder, step, [](std::string_view) {});
  times.end = last_change_ms(steps_file(folder));
  times.start = times.end - std::llround(sum);
  return times;
}

// Returns the lines of each metric's file, by name.
std::map<std::string, std::string> metrics_of(const Path& folder, const Times& times) {
  std::map<std::string, std::string> metrics;
  const auto add = [&](const std::string& name, std::int64_t iteration, double value) {
    metrics[name] += fmt::format("{} {} {}\n", times.at(iteration), number(value), iteration);
  };
  // Calls use(iteration, previous iteration, data set, numbers) for each valid line of one kind.
  const auto reader = [](auto use) {
    return [use, numbers = std::vector<std::pair<std::string, double>>(), data_set = std::string(),
            last = std::int64_t{-1}](std::string_view line) mutable {
      numbers.clear();
      std::int64_t iteration = -1;
      const bool good = read_metrics_line(
          line,
          [&](std::string_view key, double value) {
            if (key == "iteration") iteration = static_cast<std::int64_t>(value);
            if (!is_left_out(key) && is_plain(key)) numbers.emplace_back(key, value);
          },
          &data_set);
      if (!good || iteration < last) return;
      use(iteration, std::exchange(last, iteration), data_set, numbers);
    };
  };
  read_records(
      folder, reader([&](std::int64_t iteration, std::int64_t before, const std::string&, const auto& all) {
        if (iteration == before) return;
        for (const auto& [key, value] : all) add(key, iteration, value);
      }),
      reader([&](std::int64_t iteration, std::int64_t, const std::string& data_set, const auto& all) {
        if (!is_plain(data_set)) return;
        for (const auto& [key, value] : all) {
          if (key == "lm_loss") add(data_set + "/" + key, iteration, value);
        }
      }));
  return metrics;
}

// Returns the id of the store's experiment with this name. Creates the experiment if it does not exist.
std::string experiment_id(const Path& store, const std::string& name) {
  for (const std::string& id : Env::posix().list(store)) {
    const Path meta = store / id / "meta.yaml";
    if (!is_plain(id) || !Env::posix().status(meta)) continue;
    try {
      const config::Value document = config::read_document(meta);
      const config::Value* const named = document.find("name");
      if (named && named->is_scalar() && named->text == name) return id;
    } catch (const Error&) {
      // Ignores a damaged file, as MLflow does: another program may have written it.
    }
  }
  // The id has eighteen digits, like MLflow's ids. Every export of an experiment with this name has the same
  // id.
  const std::string hash = hex(as_text(sha256("experiment " + name)));
  return std::to_string(100'000'000'000'000'000ULL +
                        std::stoull(hash.substr(0, 15), nullptr, 16) % 900'000'000'000'000'000ULL);
}

// Returns MLflow's code for the status of a run.
int status_of(RunState state) {
  switch (state) {
    case RunState::kRunning:
    case RunState::kWaiting:
    case RunState::kRestarting:
      return 1;
    case RunState::kFinished:
    case RunState::kDiverged:
      return 3;
    case RunState::kInterrupted:
      return 5;
    default:
      return 4;
  }
}

}  // namespace

MlflowRun write_mlflow_run(const Path& store_folder, const Path& run_folder) {
  const Path store = std::filesystem::absolute(store_folder).lexically_normal();
  Path folder = std::filesystem::absolute(run_folder).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  const RunHistory history = read_history(folder, 2);
  if (history.status.state == RunState::kDamaged || !Env::posix().status(steps_file(folder))) {
    const std::string& problem = history.status.problem;
    throw invalid(fmt::format("'{}' cannot be exported: {}", folder.string(),
                              problem.empty() ? "it has no metrics.jsonl" : problem));
  }
  const auto setting = [&](const char* key) -> std::string {
    const auto found = history.settings.find(key);
    return found == history.settings.end() || found->second == "null" ? "" : found->second;
  };
  const auto or_else = [](std::string text, const std::string& other) { return text.empty() ? other : text; };

  const std::string group = or_else(setting("work_group"), "primus"),
                    user = or_else(setting("user_name"), "primus");
  MlflowRun run{.experiment = one_line(or_else(setting("mlflow_experiment_name"), group + "_" + user)),
                .name = one_line(or_else(setting("mlflow_run_name"),
                                         or_else(setting("exp_name"), folder.filename().string()))),
                .run_id = hex(as_text(sha256("run " + folder.string()))).substr(0, 32)};
  const Times times = times_of(folder);
  run.steps = static_cast<std::int64_t>(times.steps.size());
  make_folders(store);
  run.experiment_id = experiment_id(store, run.experiment);
  const Path experiment = store / run.experiment_id, target = experiment / run.run_id;

  const std::map<std::string, std::string> metrics = metrics_of(folder, times);
  for (const char* part : {"metrics", "params", "tags", "artifacts"}) make_folders(target / part);
  // Removes metrics and params that only an earlier export of this folder had, for example with other
  // settings.
  std::set<std::string> kept;
  for (const auto& [name, lines] : metrics) kept.insert(name.substr(0, name.find('/')));
  for (const std::string& name : Env::posix().list(target / "metrics")) {
    if (!kept.contains(name)) remove_tree(target / "metrics" / name);
  }
  for (const auto& [name, lines] : metrics) {
    make_folders((target / "metrics" / name).parent_path());
    put(target / "metrics" / name, lines);
  }
  kept.clear();
  for (const auto& [key, value] : history.settings) {
    if (!is_plain(key) || value == "null") continue;
    put(target / "params" / key, one_line(value));
    kept.insert(key);
  }
  for (const std::string& name : Env::posix().list(target / "params")) {
    if (!kept.contains(name)) remove_tree(target / "params" / name);
  }
  put(target / "tags" / "mlflow.runName", run.name);
  put(target / "tags" / "mlflow.user", one_line(user));
  put(target / "tags" / "mlflow.source.name", "primus");
  put(target / "tags" / "primus.run_folder", one_line(folder.string()));

  const std::string location = "file://" + experiment.string();
  if (!Env::posix().status(experiment / "meta.yaml")) {
    write_file_atomic(experiment / "meta.yaml",
                      fmt::format("artifact_location: {}\ncreation_time: {}\nexperiment_id: '{}'\n"
                                  "last_update_time: {}\nlifecycle_stage: active\nname: {}\n",
                                  yaml_text(location), times.start, run.experiment_id, times.start,
                                  yaml_text(run.experiment)));
  }
  const bool running = is_open(history.status.state);
  put(target / "meta.yaml",
      fmt::format("artifact_uri: {}\nend_time: {}\nentry_point_name: ''\nexperiment_id: '{}'\n"
                  "lifecycle_stage: active\nrun_id: {}\nrun_name: {}\nrun_uuid: {}\nsource_name: ''\n"
                  "source_type: 4\nsource_version: ''\nstart_time: {}\nstatus: {}\ntags: []\nuser_id: {}\n",
                  yaml_text(location + "/" + run.run_id + "/artifacts"),
                  running ? "null" : std::to_string(times.end), run.experiment_id, yaml_text(run.run_id),
                  yaml_text(run.name), yaml_text(run.run_id), times.start, status_of(history.status.state),
                  yaml_text(user)));
  return run;
}

}  // namespace primus
