// Where a run writes: {workspace}/{work_group}/{user_name}/{exp_name}/, as Primus lays it out
// (docs/formats/run-folder.md).
//
//   logs/<module>/rank-N/{debug,info,warning,error}.log    base/log.h
//   metrics.jsonl, evaluations.jsonl, samples.jsonl        metrics_file.h
//   warnings.jsonl                                         metrics_file.h: what detectors found
//   ending.json                                            run_ending.h: how the last process ended
//   mlperf.log                                             mlperf_log.h; elsewhere with MLLOG_OUTPUT_FILE
//   tensorboard/                                           event_file.h
//   checkpoints/                                           lm/checkpoint
//   traces/steps-A-B/rank-N.json                           Chrome traces of steps (lm/train/run_trace.h)
//   experiment.yaml                                        what was run last
//   .lock                                                  held by the process that trains (RunLock)
//
// RunFolder is immutable and thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/files/file.h"

namespace primus {

struct RunIdentity {
  std::string workspace = {};   // any path
  std::string work_group = {};  // these three: names, or names joined by '/'
  std::string user_name = {};
  std::string exp_name = {};
};

class RunFolder {
 public:
  // Throws Error(kInvalid), naming the key, when one is empty or would leave the workspace ("..", absolute,
  // control characters). Touches no file: so --dry-run may use it.
  explicit RunFolder(const RunIdentity& identity);

  const Path& root() const { return root_; }
  Path logs() const { return root_ / "logs"; }
  // Throws Error(kInvalid) when `module` is no plain name.
  Path rank_logs(std::string_view module, int rank) const;
  Path tensorboard() const { return root_ / "tensorboard"; }
  Path traces() const { return root_ / "traces"; }
  Path checkpoints() const { return root_ / "checkpoints"; }
  // The resolved experiment of the last process that trained here; its `save`, where it has one, is an
  // absolute path.
  Path experiment_file() const { return root_ / kExperimentFile; }
  static constexpr const char* kExperimentFile = "experiment.yaml";
  Path metrics_file() const { return root_ / "metrics.jsonl"; }
  Path evaluations_file() const { return root_ / "evaluations.jsonl"; }
  Path samples_file() const { return root_ / "samples.jsonl"; }
  Path warnings_file() const { return root_ / kWarningsFile; }
  static constexpr const char* kWarningsFile = "warnings.jsonl";
  Path mlperf_log() const { return root_ / "mlperf.log"; }

  // Makes the folder itself, so that a workspace that cannot be written is known before the first step.
  // Throws FileError.
  void create(Env& env = Env::posix()) const;

 private:
  Path root_;
};

// Keeps a folder for this process: two runs that write into one would spoil each other's checkpoints. The
// lock goes with the process, however it ends. Not thread-safe.
class RunLock {
 public:
  // Throws Error(kInvalid), with `hint`, when another process holds it, kIo when the system refuses.
  explicit RunLock(
      const Path& folder,
      const char* hint = "wait for it or stop it, or give this run a name of its own (exp_name)");
  ~RunLock();
  // Whether a process holds it now. Changes nothing and creates no file, so anyone may ask. False where it
  // cannot be known.
  static bool held(const Path& folder);
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace primus
