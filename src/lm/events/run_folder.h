// The folder to which a run writes: {workspace}/{work_group}/{user_name}/{exp_name}/, the layout of AMD
// Primus (docs/formats/run-folder.md).
//
//   logs/<module>/rank-N/{debug,info,warning,error}.log    base/log.h
//   metrics.jsonl, evaluations.jsonl, samples.jsonl        metrics_file.h
//   warnings.jsonl                                         metrics_file.h: warnings of detectors
//   ending.json                                            run_ending.h: how the last process ended
//   mlperf.log                                             mlperf_log.h; MLLOG_OUTPUT_FILE changes the path
//   tensorboard/                                           event_file.h
//   checkpoints/                                           lm/checkpoint
//   traces/steps-A-B/rank-N.json                           Chrome traces of steps (lm/train/run_trace.h)
//   experiment.yaml                                        settings of the last process that trained
//   .lock                                                  held by the process that trains (RunLock)
//
// RunFolder is immutable and thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/files/file.h"

namespace primus {

struct RunIdentity {
  std::string workspace = {};   // the key `workspace`: any path
  std::string work_group = {};  // the keys work_group, user_name and exp_name: each is a name, or names
                                // joined by '/'
  std::string user_name = {};
  std::string exp_name = {};
};

// Returns the file with the timelines of a pipeline stage, in the folder of a run (docs/formats/events.md).
Path timeline_file(const Path& run, int stage);

class RunFolder {
 public:
  // Throws Error(kInvalid), which names the key, if a component is empty or would lead outside of the
  // workspace ("..", absolute, control characters). Touches no file; --dry-run may therefore create this
  // object.
  explicit RunFolder(const RunIdentity& identity);

  const Path& root() const { return root_; }
  Path logs() const { return root_ / "logs"; }
  // Returns the folder of a rank's logs. Throws Error(kInvalid) if `module` is not a plain name.
  Path rank_logs(std::string_view module, int rank) const;
  Path tensorboard() const { return root_ / "tensorboard"; }
  Path traces() const { return root_ / "traces"; }
  Path checkpoints() const { return root_ / "checkpoints"; }
  // Returns the file with the resolved experiment of the last process that trained here. If `save` is set
  // there, its value is an absolute path.
  Path experiment_file() const { return root_ / kExperimentFile; }
  static constexpr const char* kExperimentFile = "experiment.yaml";
  static constexpr const char* kSamplesFile = "samples.jsonl";
  Path metrics_file() const { return root_ / "metrics.jsonl"; }
  Path evaluations_file() const { return root_ / "evaluations.jsonl"; }
  Path samples_file() const { return root_ / kSamplesFile; }
  Path warnings_file() const { return root_ / kWarningsFile; }
  static constexpr const char* kWarningsFile = "warnings.jsonl";
  Path mlperf_log() const { return root_ / "mlperf.log"; }

  // Creates the folder, so that an unwritable workspace is found before the first step. Throws FileError.
  void create(Env& env = Env::posix()) const;

 private:
  Path root_;
};

// If `given` is the name of a run in ./output, returns a question with the run's folder: "did you mean
// 'output/TEAM/USER/RUN'?". Otherwise returns "".
std::string hint_for_run_name(const Path& given);

// Locks a folder for this process, because two runs in one folder would overwrite each other's checkpoints.
// The lock is released when the process ends, even if it is killed. Not thread-safe.
class RunLock {
 public:
  // Throws Error(kInvalid), with `hint` in its message, if another process holds the lock; Error(kIo) if the
  // operating system refuses.
  explicit RunLock(const Path& folder,
                   const char* hint = "wait for it or stop it, or give this run another name (exp_name)");
  ~RunLock();
  // Returns whether a process holds the lock now. Changes nothing; any process may call this function.
  // Returns false if the state cannot be determined.
  static bool held(const Path& folder);
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace primus
