#include "lm/report/run_list.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/json_reader.h"
#include "lm/events/event_log.h"
#include "lm/events/metrics_file.h"
#include "lm/events/run_folder.h"
#include "lm/events/supervisor_record.h"
#include "lm/report/metrics_line.h"
#include "lm/report/run_records.h"

namespace primus {
namespace {

constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kEvaluations = "evaluations.jsonl";
constexpr int kMaxDepth = 16;
constexpr double kMaxSteps = 9007199254740992.0;  // doubles represent all integers up to 2^53 exactly

bool is_there(const Path& path) {
  std::error_code none;
  return std::filesystem::exists(std::filesystem::status(path, none));
}

// Returns when the file changed last, in seconds since 1970.
std::optional<double> changed_at(const Path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return std::nullopt;
  return static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
}

// Returns the seconds since the newest of the files changed.
double age_of(const Path& folder) {
  std::optional<double> newest;
  for (const Path& file : {folder / kMetrics, folder / kEvaluations, folder / RunFolder::kExperimentFile,
                           event_file(folder, 0), folder / kSupervisorFile, folder / "logs"}) {
    if (const auto changed = changed_at(file)) newest = std::max(newest.value_or(*changed), *changed);
  }
  if (!newest) return 0;
  return std::max(0.0, unix_seconds() - *newest);
}

// Returns the text after "key: " on each line, without quotes. experiment.yaml has this form. Reading lines
// is a hundred times faster than parsing YAML, which matters for lists of thousands of runs.
std::map<std::string, std::string> settings_in(std::string_view text) {
  std::map<std::string, std::string> settings;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    const std::size_t colon = line.find(": ");
    if (line.starts_with('#') || colon == std::string_view::npos) continue;
    std::string_view value = line.substr(colon + 2);
    while (value.ends_with(' ') || value.ends_with('\r')) value.remove_suffix(1);
    const bool quoted =
        value.size() >= 2 && (value.front() == '"' || value.front() == '\'') && value.back() == value.front();
    settings.emplace(line.substr(0, colon), quoted ? value.substr(1, value.size() - 2) : value);
  }
  return settings;
}

std::optional<std::string> setting(const RunStatus& run, const char* key) {
  const auto found = run.settings.find(key);
  return found == run.settings.end() ? std::nullopt : std::optional(found->second);
}

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc() && result.ptr == end ? std::optional(value) : std::nullopt;
}

// Returns the step that the file `latest` names: "iter_0000100".
std::optional<std::int64_t> latest_step(const Path& checkpoints) {
  try {
    constexpr std::uint64_t kLimit = 4096;
    std::string name = read_file(checkpoints / "latest", kLimit);
    name.erase(name.find_last_not_of(" \r\n") + 1);
    const std::size_t digits = name.find_last_not_of("0123456789") + 1;
    return number<std::int64_t>(std::string_view(name).substr(digits));
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Reads the step and its values from `line`, a line of metrics.jsonl.
void take_step(std::string_view line, const Path& file, RunStatus& run) {
  std::optional<double> speed, average;
  std::optional<std::int64_t> planned;
  const bool good = read_metrics_line(line, [&](std::string_view key, double value) {
    if (key == "iteration") run.step = static_cast<std::int64_t>(value);
    // If the experiment sets epochs or minutes, only the run's records contain the number of steps.
    if (key == "train_iters" && value >= 1 && value < kMaxSteps) planned = static_cast<std::int64_t>(value);
    if (key == "lm_loss") run.loss = value;
    if (key == "tokens_per_second_per_device") speed = value;
    if (key == "tokens_per_second_per_device_avg") average = value;
  });
  if (!good)
    throw invalid(fmt::format("the last line of {} is not a metrics record", file.filename().string()));
  run.tokens_per_second = average ? average : speed;
  if (!run.steps) run.steps = planned;
}

// Reads an evaluation from `line`, a line of evaluations.jsonl. Returns its step, or nullopt if the line is
// not about validation data.
std::optional<std::int64_t> take_validation(std::string_view line, RunStatus& run) {
  std::string data_set;
  std::optional<double> loss, bits;
  std::int64_t step = 0;
  const bool good = read_metrics_line(
      line,
      [&](std::string_view key, double value) {
        if (key == "iteration") step = static_cast<std::int64_t>(value);
        if (key == "lm_loss") loss = value;
        if (key == "bits_per_byte") bits = value;
      },
      &data_set);
  if (!good || data_set != "validation" || !loss) return std::nullopt;
  run.validation_loss = loss;
  run.bits_per_byte = bits;
  return step;
}

// Data from a run's records that RunStatus does not contain.
struct Marks {
  std::int64_t evaluated = 0;              // step of the newest evaluation on validation data
  std::optional<std::int64_t> saved = {};  // step of the newest checkpoint
  // Ending of the newest process; kRunning if the process recorded no ending.
  std::optional<RunEnding> ending = {};
  double began_at = 0, ended_at = 0;  // of that process, in seconds since 1970; 0: unknown
};

// Returns whether the state of a `begin` event came from a checkpoint on the disk.
bool is_from_disk(std::string_view facts) {
  return facts.find(R"("state_from":"memory")") == facts.npos &&
         facts.find(R"("state_from":"partner")") == facts.npos;
}

// Returns the planned steps in a `begin` event of a process that had nothing to train; nullopt for other
// events.
std::optional<std::int64_t> planned_without_training(std::string_view facts) {
  bool trains = true;
  std::optional<std::int64_t> planned;
  JsonReader json(facts, "event");
  json.object([&](std::string_view key) {
    if (key == "trains" && json.peek() == JsonReader::Kind::kBool) {
      trains = json.read_bool();
    } else if (key == "train_iters" && json.peek() == JsonReader::Kind::kNumber) {
      planned = static_cast<std::int64_t>(std::clamp(json.read_double(), 0.0, kMaxSteps));
    } else {
      json.skip();
    }
  });
  return trains ? std::nullopt : planned;
}

Marks read_events_of(const Path& file, RunStatus& run) {
  Marks marks;
  bool began = false, evaluated = false;
  std::vector<RunWarning> warnings;
  read_rare_events(file, [&](const EventLine& event) {
    if (event.event == "begin") {
      if (!began && !marks.ending)
        marks.ending = RunEnding{.state = RunEnding::State::kRunning, .iteration = event.step};
      if (!std::exchange(began, true)) {
        run.step = event.step;
        marks.began_at = event.time;
        // A process without steps to train may have been started with a train_iters below the step that the
        // run has already reached. The length of the run is then this step.
        if (const auto planned = planned_without_training(event.facts))
          run.steps = std::max(*planned, event.step);
      }
      // The process loaded this checkpoint, so the checkpoint must be complete on disk, unless the state came
      // from a snapshot in memory.
      if (!marks.saved && event.step > 0 && is_from_disk(event.facts)) marks.saved = event.step;
      return event.step > 0;
    }
    if (event.event == "end" && !began && !marks.ending) {
      marks.ending = ending_from_json(event.facts);
      marks.ended_at = event.time;
    }
    if (event.event == "checkpoint" && !marks.saved && event.facts.find("durable") != std::string_view::npos)
      marks.saved = event.step;
    if (event.event == "evaluation" && !evaluated) {
      const auto step = take_validation(event.facts, run);
      evaluated = step.has_value();
      marks.evaluated = step.value_or(0);
    }
    if (event.event == "warning" && warnings.size() < kMaxRecorded) {
      if (auto warning = warning_from_json(event.facts)) warnings.push_back(std::move(*warning));
    }
    return true;
  });
  run.warnings.assign(std::make_move_iterator(warnings.rbegin()), std::make_move_iterator(warnings.rend()));
  std::string text;
  EventLine step;
  if (read_last_step(file, text, step)) take_step(step.facts, file, run);
  return marks;
}

// Reads the folder of a run of an older version, which has no events.
Marks read_files_of(const Path& folder, const Path& checkpoints, RunStatus& run) {
  Marks marks;
  if (is_there(folder / kMetrics)) {
    const std::string line = last_line(folder / kMetrics);
    if (!line.empty()) take_step(line, folder / kMetrics, run);
  }
  if (is_there(folder / kEvaluations)) {
    read_lines(folder / kEvaluations, [&](std::string_view line) {
      if (const auto step = take_validation(line, run)) marks.evaluated = *step;
    });
  }
  run.warnings = recorded_warnings(folder / RunFolder::kWarningsFile);
  marks.saved = latest_step(checkpoints);
  marks.ending = read_ending(folder);
  return marks;
}

// Returns whether the loss grew and stayed high until the end.
bool diverged(const RunStatus& run) {
  for (const RunWarning& warning : run.warnings) {
    if (warning.detector == "loss_growth" && run.loss && !(*run.loss < warning.limit)) return true;
  }
  return false;
}

// Whether the process belongs to another machine, where it cannot be seen from here.
bool is_elsewhere(const ProcessIdentity& process) {
  const auto here = process_identity(::getpid());
  return here && process.boot != here->boot;
}

// Returns whether the supervisor of a run without processes still runs.
bool supervisor_lives(const Path& run, const Supervision& supervision) {
  const std::optional<PendingRestart>& pending = supervision.pending;
  if (pending && pending->supervisor) {
    const ProcessIdentity& process = pending->supervisor->process;
    if (seen_from_here(process)) return true;
    // A supervisor on another machine is trusted for some time after the restart is due, or after its longest
    // wait for space on the disk.
    constexpr double kLate = 60, kSpaceWait = 3600;
    const double due = pending->free_bytes ? supervision.time + kSpaceWait : pending->at;
    return is_elsewhere(process) && unix_seconds() < due + kLate;
  }
  const auto start = read_run_start(run);
  return start && start->job && seen_from_here(start->job->process);
}

std::string next_start(const std::optional<PendingRestart>& pending) {
  if (!pending) return "its supervisor ends its processes";
  const bool elsewhere = pending->supervisor && is_elsewhere(pending->supervisor->process);
  const double left = pending->at - unix_seconds();
  std::string next = "starts again";
  if (pending->free_bytes) {
    next += fmt::format(" when the disk has {} free", human_bytes(static_cast<double>(*pending->free_bytes)));
  } else if (left > 0) {
    next += fmt::format(" in {}", human_duration(std::ceil(left)));
  } else if (elsewhere) {
    next = fmt::format("was to start again {} ago", human_duration(std::ceil(-left)));
  }
  if (elsewhere) {
    next += fmt::format("; its supervisor on '{}' cannot be seen from here",
                        printable(pending->supervisor->process.host));
  }
  return next;
}

// Sets the state of a run without processes whose supervisor runs. Returns false for other runs.
bool judge_supervised(RunStatus& run) {
  const std::optional<Supervision>& supervision = run.supervision;
  const bool open = supervision && supervision->ended.empty();
  const bool lives = open && supervisor_lives(run.folder, *supervision);
  if (!lives && !supervisor_of(run.folder)) return false;
  const auto& pending = open ? supervision->pending : std::nullopt;
  if (pending) {
    run.reason = pending->fault;
    run.failure = pending->text;
  }
  const bool lost_node = pending && pending->fault == kLostNodeFault;
  if (lives && !lost_node) {
    run.state = RunState::kRestarting;
    run.next = next_start(pending);
  } else {
    run.state = RunState::kWaiting;
    run.next = "waits for the machines of the job";
  }
  return true;
}

// Adds the time since the newest record of a supervisor that waits.
void extend_times(RunStatus& run) {
  const bool waits = is_open(run.state) && run.state != RunState::kRunning;
  if (!waits || !run.supervision || !run.supervision->ended.empty()) return;
  RunTimes& times = run.supervision->times;
  const double passed = std::max(0.0, unix_seconds() - run.supervision->time);
  if (times.wall <= 0) return;
  times.restart += passed;
  times.wall += passed;
}

// Sets the state from the recorded ending or, if none is recorded, from the other marks.
void judge(RunStatus& run, bool reached_target, const Marks& marks) {
  if (RunLock::held(run.folder)) {
    run.state = RunState::kRunning;
    return;
  }
  if (judge_supervised(run)) return;
  const std::optional<RunEnding>& ending = marks.ending;
  const bool complete = reached_target || (run.steps && run.step >= *run.steps);
  const bool saved = run.step > 0 && marks.saved == run.step;
  using State = RunEnding::State;
  if (!ending) {
    run.state = complete ? RunState::kFinished : saved ? RunState::kInterrupted : RunState::kCrashed;
  } else if (ending->state == State::kRunning) {
    run.state = !saved ? RunState::kCrashed : complete ? RunState::kFinished : RunState::kInterrupted;
    if (run.state != RunState::kFinished) {
      // A supervisor that gave up has ended the processes, and has recorded the reason.
      const bool gave_up =
          run.supervision && !run.supervision->text.empty() && run.supervision->time >= marks.began_at;
      run.reason = gave_up ? run.supervision->ended : "killed";
      if (gave_up) run.failure = run.supervision->text;
    }
  } else {
    run.state = ending->state == State::kFinished  ? RunState::kFinished
                : ending->state == State::kStopped ? RunState::kInterrupted
                                                   : RunState::kCrashed;
    run.reason = ending->reason;
    run.failure = ending->text;
  }
  if (run.state == RunState::kFinished && diverged(run)) run.state = RunState::kDiverged;
}

// Folders with the logs of ranks: logs/<module>/rank-N.
std::vector<Path> log_folders(const Path& folder) {
  std::vector<Path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator module(folder / "logs", error), end; !error && module != end;
       module.increment(error)) {
    if (is_there(module->path() / "rank-0")) found.push_back(module->path() / "rank-0");
  }
  return found;
}

struct LoggedError {
  double stamp = 0;    // the line's time in the zone of its writer, read as if it were UTC; 0: unknown
  double written = 0;  // when the file changed last, in seconds since 1970; 0: unknown
  std::string text = {};
};

// Returns the newest entry in the error logs of rank 0.
LoggedError newest_error(const Path& folder) {
  LoggedError newest;
  for (const Path& logs : log_folders(folder)) {
    const Path log = logs / "error.log";
    if (!is_there(log)) continue;
    const std::string line = last_log_entry(log);
    // "[20261129 11:26:05][rank-0/1][ERROR]    [file:line] : message" (docs/formats/run-folder.md)
    constexpr std::string_view kBefore = "] : ";
    const std::size_t at = line.find(kBefore);
    std::tm local{};
    const bool dated = ::strptime(line.c_str(), "[%Y%m%d %H:%M:%S]", &local) != nullptr;
    const double stamp = dated ? static_cast<double>(::timegm(&local)) : 0;
    if (stamp < newest.stamp) continue;
    newest = {.stamp = stamp,
              .written = changed_at(log).value_or(0),
              .text = at == line.npos ? line : line.substr(at + kBefore.size())};
  }
  return newest;
}

// Returns whether the file changed when its last line was written. It did not if it was copied. The zone of
// the line is unknown, but all zones differ from UTC by quarters of an hour.
bool has_time_of_its_line(const LoggedError& error) {
  constexpr double kQuarter = 900, kDelay = 5;  // seconds; the clock of a file server may differ
  return std::abs(std::remainder(error.written - error.stamp, kQuarter)) < kDelay;
}

// Explains a run that failed before its first event by the last error in its logs.
void judge_start(RunStatus& run) {
  if (run.state != RunState::kCrashed) return;
  run.reason = "before its first step";
  run.failure = newest_error(run.folder).text;
}

// The run may have been started again, and that start failed before its first event.
void judge_later_start(RunStatus& run, const Marks& marks) {
  if (is_open(run.state) || marks.ended_at == 0) return;
  constexpr double kSameEnd = 2;  // seconds between the end of a process and its last error
  LoggedError error = newest_error(run.folder);
  if (error.text.empty() || error.stamp == 0 || !has_time_of_its_line(error)) return;
  if (error.written < marks.ended_at + kSameEnd) return;
  run.reason += run.reason.empty() ? "the next start failed" : "; the next start failed";
  run.failure = std::move(error.text);
}

void search(const Path& folder, int depth, RunSearch& found) {
  const bool run = is_run_folder(folder) || is_started_folder(folder);
  if (run) found.folders.push_back(folder);
  if (depth == 0) {
    found.notes.push_back(fmt::format("folders below '{}' were not searched", folder.string()));
    return;
  }
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const Path name = entries->path().filename();
    // Folders inside a run are not runs.
    if (run && (name == "logs" || name == "tensorboard" || name == "checkpoints" || name == kEventsFolder))
      continue;
    std::error_code none;
    if (std::filesystem::is_directory(entries->symlink_status(none)))
      search(entries->path(), depth - 1, found);
  }
  if (error)
    found.notes.push_back(fmt::format("cannot read folder '{}': {}", folder.string(), error.message()));
}

}  // namespace

std::string_view name_of(RunState state) {
  constexpr std::array<std::string_view, 8> kNames = {"running",  "waiting",     "restarting", "finished",
                                                      "diverged", "interrupted", "crashed",    "damaged"};
  return kNames[static_cast<std::size_t>(state)];
}

std::span<const RunState> run_states() {
  using enum RunState;
  static constexpr std::array kStates = {kRunning,  kWaiting,     kRestarting, kFinished,
                                         kDiverged, kInterrupted, kCrashed,    kDamaged};
  return kStates;
}

bool is_run_folder(const Path& folder) {
  return is_there(folder / kMetrics) || is_there(folder / RunFolder::kExperimentFile) ||
         is_there(event_file(folder, 0));
}

bool is_started_folder(const Path& folder) {
  return !is_run_folder(folder) && (is_there(folder / kSupervisorFile) || !log_folders(folder).empty());
}

RunStatus run_status(const Path& folder) {
  RunStatus run{.folder = folder};
  try {
    run.age_seconds = age_of(folder);
    Path checkpoints = folder / "checkpoints";
    std::optional<double> target;
    if (const auto experiment = recorded_experiment(folder)) {
      run.settings = settings_in(*experiment);
      if (const auto steps = setting(run, "train_iters")) run.steps = number<std::int64_t>(*steps);
      if (const auto loss = setting(run, "target_eval_loss")) target = number<double>(*loss);
      if (const auto save = setting(run, "save"); save && *save != "null") checkpoints = *save;
    }
    const auto events = events_of(folder);
    const Marks marks = events ? read_events_of(*events, run) : read_files_of(folder, checkpoints, run);
    const bool reached =
        target && run.step > 0 && marks.evaluated == run.step && run.validation_loss <= *target;
    run.supervision = read_supervision(folder);
    judge(run, reached, marks);
    if (!is_run_folder(folder)) judge_start(run);
    judge_later_start(run, marks);
    extend_times(run);
  } catch (const std::exception& error) {
    run.state = RunState::kDamaged;
    run.problem = error.what();
  }
  return run;
}

std::vector<std::string> differing_settings(const std::vector<RunStatus>& runs) {
  // The location and the name of a run, and keys that are derived from the number of steps, are not listed.
  constexpr std::array<std::string_view, 4> kPassedOver = {"exp_name", "workspace", "save", "lr_decay_iters"};
  std::map<std::string, std::set<std::string>> values;
  std::size_t count = 0;
  for (const RunStatus& run : runs) count += !run.settings.empty();
  std::map<std::string, std::size_t> having;
  for (const RunStatus& run : runs) {
    for (const auto& [key, value] : run.settings) {
      values[key].insert(value);
      ++having[key];
    }
  }
  std::vector<std::string> keys;
  for (const auto& [key, different] : values) {
    const bool passed_over = std::find(kPassedOver.begin(), kPassedOver.end(), key) != kPassedOver.end();
    if (!passed_over && (different.size() > 1 || having[key] < count)) keys.push_back(key);
  }
  // Omits keys that get their values from weight_decay.
  if (std::find(keys.begin(), keys.end(), "weight_decay") != keys.end()) {
    std::erase(keys, "start_weight_decay");
    std::erase(keys, "end_weight_decay");
  }
  // The most interesting keys come first; the other keys follow by name.
  constexpr std::array<std::string_view, 14> kFirst = {
      "stage",           "load", "data_path",  "sft_dataset_name",
      "tokenizer_model", "lr",   "min_lr",     "num_layers",
      "hidden_size",     "lora", "seq_length", "global_batch_size",
      "train_iters",     "seed"};
  std::ranges::stable_sort(keys, {}, [&](const std::string& key) { return std::ranges::find(kFirst, key); });
  return keys;
}

std::map<std::string, std::string> usual_settings(const std::vector<RunStatus>& runs,
                                                  const std::vector<std::string>& keys) {
  std::map<std::string, std::string> usual;
  for (const std::string& key : keys) {
    std::map<std::string, std::size_t> counts;
    for (const RunStatus& run : runs) {
      const auto found = run.settings.find(key);
      if (found != run.settings.end() && 2 * ++counts[found->second] > runs.size())
        usual[key] = found->second;
    }
  }
  return usual;
}

RunSearch find_runs(const Path& folder) {
  std::error_code none;
  if (!std::filesystem::is_directory(folder, none)) {
    const bool exists = std::filesystem::exists(folder, none);
    const std::string run = exists ? "" : hint_for_run_name(folder);
    throw invalid(fmt::format("{} '{}' {}", exists ? "file" : "folder", folder.string(),
                              exists ? "is not a folder" : "does not exist"),
                  run.empty() ? "name the workspace of the runs, e.g. output" : run);
  }
  RunSearch found;
  search(folder, kMaxDepth, found);
  std::sort(found.folders.begin(), found.folders.end());
  return found;
}

}  // namespace primus
