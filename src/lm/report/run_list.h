// Lists the runs below a folder, and the status of each run. The status is read from the run's events
// (docs/formats/events.md) and lock. If an older version of Primus wrote the run, the run has no events, and
// the status is read from its other files. Damaged files result in a status, never in an error. Free
// functions without state.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"
#include "lm/events/detectors/detector.h"
#include "lm/events/run_ending.h"
#include "lm/events/supervision.h"

namespace primus {

enum class RunState : std::uint8_t {
  kRunning,      // a process holds the run's lock
  kWaiting,      // its supervisor runs, and waits for the other machines of the job
  kRestarting,   // a fault ended its processes, and its supervisor will start them again
  kFinished,     // the last step was completed and saved, or target_eval_loss was reached
  kDiverged,     // the run finished, but its loss grew and stayed high (detectors/loss_growth.cpp)
  kInterrupted,  // the run was stopped by request or by a limit, or it was killed after its last step was
                 // saved
  kCrashed,      // an error or a kill ended the run, and steps after the newest checkpoint are lost
  kDamaged,      // the files cannot be read (RunStatus::problem)
};
// Returns the state's name, such as "running". All commands and pages use these names.
std::string_view name_of(RunState state);
// Whether a process trains, or a supervisor will start one.
constexpr bool is_open(RunState state) { return state <= RunState::kRestarting; }
std::span<const RunState> run_states();  // all states, in the order above

struct RunStatus {
  Path folder;
  RunState state = RunState::kDamaged;
  std::string problem = {};                    // why the run is kDamaged, in one sentence
  std::int64_t step = 0;                       // number of completed steps
  std::optional<std::int64_t> steps = {};      // number of steps of the complete run; empty if the experiment
                                               // does not set it
  std::optional<double> loss = {};             // loss of the last step
  std::optional<double> validation_loss = {};  // loss of the newest evaluation
  std::optional<double> bits_per_byte = {};    // bits per byte of the same evaluation
  // Tokens per second and device: the average over recent steps, or of one step if there is no average.
  std::optional<double> tokens_per_second = {};
  double age_seconds = 0;  // seconds since the run's files last changed
  // Why the run ended, or is restarted, in a word or two: "SIGTERM", "disk full", "killed". Empty if the run
  // is running or finished, or if an older version of Primus wrote the run.
  std::string reason = {};
  std::string failure = {};  // error message of a run that failed or is restarted
  std::string next = {};     // what a run that waits or is restarted waits for: "starts again in 8 s"
  std::vector<RunWarning> warnings = {};
  std::optional<Supervision> supervision = {};       // restarts and times, if the run is or was supervised
  std::map<std::string, std::string> settings = {};  // settings of experiment.yaml, by key
};

// Returns whether `folder` belongs to a run: whether it has events, metrics.jsonl or experiment.yaml.
bool is_run_folder(const Path& folder);

// Returns whether a run was started in `folder` and has no records yet: it is loading, waits for its
// machines, or failed before its first event.
bool is_started_folder(const Path& folder);

// Returns the status of the run in `folder`. Never throws an Error: problems become kDamaged.
RunStatus run_status(const Path& folder);

// Returns the keys whose settings differ between runs, without keys that name the run and without derived
// settings. Ignores runs that have no settings.
std::vector<std::string> differing_settings(const std::vector<RunStatus>& runs);
// Returns, for each key, the value that more than half of the runs have. Keys without such a value are
// omitted.
std::map<std::string, std::string> usual_settings(const std::vector<RunStatus>& runs,
                                                  const std::vector<std::string>& keys);

struct RunSearch {
  std::vector<Path> folders = {};       // folders of the runs, sorted
  std::vector<std::string> notes = {};  // folders that could not be searched
};
// Finds `folder` if it is a run or was started, and all runs below it. Does not follow symlinks. Throws
// Error(kInvalid) if the folder does not exist.
RunSearch find_runs(const Path& folder);

}  // namespace primus
