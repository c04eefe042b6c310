// Lists the runs below a folder, and the status of each. A run is inspected through its events
// (docs/formats/events.md) and its lock, or, if an older version without events wrote it, through its other
// files. Damage becomes a status, never an error. Free functions without state.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"
#include "lm/events/detectors/detector.h"
#include "lm/events/run_ending.h"

namespace primus {

enum class RunState : std::uint8_t {
  kRunning,      // the run's lock is held by a process
  kFinished,     // the last step is completed and saved, or target_eval_loss was reached
  kDiverged,     // the run finished, but its loss grew and stayed high (detectors/loss_growth.cpp)
  kInterrupted,  // the run stopped by request or by a limit, or was killed with its last step saved
  kCrashed,      // an error or a kill ended the run; steps after the newest checkpoint are lost
  kDamaged,      // the files cannot be read (RunStatus::problem)
};
std::string_view name_of(RunState state);  // Returns the state's name, such as "running".

struct RunStatus {
  Path folder;
  RunState state = RunState::kDamaged;
  std::string problem = {};                    // the problem in one sentence, if the run is damaged
  std::int64_t step = 0;                       // number of completed steps
  std::optional<std::int64_t> steps = {};      // total steps; empty if the experiment does not set them
  std::optional<double> loss = {};             // loss of the last step
  std::optional<double> validation_loss = {};  // loss of the newest evaluation
  std::optional<double> bits_per_byte = {};    // bits per byte of the same evaluation
  // Tokens per second and device; if known, the average over recent steps.
  std::optional<double> tokens_per_second = {};
  double age_seconds = 0;  // seconds since the run's files last changed
  // Why the run ended, in a word or two: "SIGTERM", "disk full", "killed". Empty if the run is running or
  // finished, or if an older version of this program wrote the run.
  std::string reason = {};
  std::string failure = {};  // error message of a failed run
  std::vector<RunWarning> warnings = {};
  std::map<std::string, std::string> settings = {};  // settings of experiment.yaml, by key
};

// Whether `folder` belongs to a run: it has events, metrics.jsonl or experiment.yaml.
bool is_run_folder(const Path& folder);

// Returns the status of the run in `folder`. Never throws an Error: problems become kDamaged.
RunStatus run_status(const Path& folder);

// Returns the keys of settings that differ between runs, except names of runs and settings that are derived
// from others. Ignores runs without settings.
std::vector<std::string> differing_settings(const std::vector<RunStatus>& runs);
// Returns for each key the value that more than half of the runs have; omits keys without such a value.
std::map<std::string, std::string> usual_settings(const std::vector<RunStatus>& runs,
                                                  const std::vector<std::string>& keys);

struct RunSearch {
  std::vector<Path> folders = {};       // folders of the runs, sorted
  std::vector<std::string> notes = {};  // folders that could not be searched
};
// Finds all runs in `folder` and below it, including itself. Does not follow symlinks. Throws Error(kInvalid)
// if the folder does not exist.
RunSearch find_runs(const Path& folder);

}  // namespace primus
