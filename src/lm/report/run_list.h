// Which runs lie under a folder, and how each is doing. A run is looked at from outside, by its events
// (docs/formats/events.md) and its lock, or by its other files where it began before there were events: what
// is damaged is said to be, and never an error. Free functions without state.
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
  kRunning,      // a process holds its lock
  kFinished,     // its last step is done and saved, or its target_eval_loss reached
  kDiverged,     // likewise, but its loss has grown and stayed high (detectors/loss_growth.cpp)
  kInterrupted,  // stopped on request or by a limit, or its newest checkpoint holds its last step
  kCrashed,      // an error, or a process that was killed: steps behind the newest checkpoint are lost
  kDamaged,      // its files cannot be read (RunStatus::problem)
};
std::string_view name_of(RunState state);  // "running"

struct RunStatus {
  Path folder;
  RunState state = RunState::kDamaged;
  std::string problem = {};                      // of a damaged one: what is wrong, in one sentence
  std::int64_t step = 0;                         // completed; 0 before the first
  std::optional<std::int64_t> steps = {};        // in all, where the experiment says it
  std::optional<double> loss = {};               // of the last step
  std::optional<double> validation_loss = {};    // the newest
  std::optional<double> bits_per_byte = {};      // of the same evaluation
  std::optional<double> tokens_per_second = {};  // per device, averaged where there is an average
  double age_seconds = 0;                        // since its files last changed
  // Why it ended, in a word or two: "SIGTERM", "disk full", "killed". Empty: it runs, it is done, or an older
  // version wrote it.
  std::string reason = {};
  std::string failure = {};  // what a run that failed said
  std::vector<RunWarning> warnings = {};
  std::map<std::string, std::string> settings = {};  // of experiment.yaml, by key
};

// Whether `folder` is a run's: it has events, metrics.jsonl or experiment.yaml.
bool is_run_folder(const Path& folder);

// The run in `folder`. Never throws an Error: what is wrong becomes kDamaged.
RunStatus run_status(const Path& folder);

// The keys of settings that are not the same in all runs, without names of runs and without what follows from
// another setting. Runs without settings have no say.
std::vector<std::string> differing_settings(const std::vector<RunStatus>& runs);
// The value of each key that more than half of the runs have, where there is one.
std::map<std::string, std::string> usual_settings(const std::vector<RunStatus>& runs,
                                                  const std::vector<std::string>& keys);

struct RunSearch {
  std::vector<Path> folders = {};       // of the runs, sorted
  std::vector<std::string> notes = {};  // what could not be looked into
};
// All runs in `folder` and below it, itself included. Symlinks are not followed. Throws Error(kInvalid) when
// there is no such folder.
RunSearch find_runs(const Path& folder);

}  // namespace primus
