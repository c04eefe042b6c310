// Exports runs in MLflow's file format: a folder "mlruns" that `mlflow ui` displays and `mlflow
// migrate-filestore` imports into a database.
//
//   FOLDER/<experiment>/meta.yaml
//   FOLDER/<experiment>/<run>/{meta.yaml, metrics/<name>, params/<name>, tags/<name>}
//
// A run's folder always maps to the same run of the MLflow store: a repeated export updates that run, even if
// training was stopped, killed or resumed in between. Every file is replaced by rename, meta.yaml last. Free
// functions without state; only one process may write to a store at a time.
#pragma once

#include <cstdint>
#include <string>

#include "base/files/file.h"

namespace primus {

struct MlflowRun {
  std::string experiment;     // mlflow_experiment_name, or work_group and user_name
  std::string name;           // mlflow_run_name, or exp_name
  std::string experiment_id;  // id of the experiment, in digits; if an experiment of this name exists, it is
                              // that experiment's id
  std::string run_id;         // id of the run, 32 hexadecimal digits
  std::int64_t steps = 0;     // number of lines of metrics.jsonl
};

// Exports the run in `folder` into `store`: every line of metrics.jsonl, the evaluations, and the settings
// that are not null. Lines have no timestamps, so the time of each step is computed from the time of the
// file's last change and the durations of the later steps. Throws FileError, and Error(kInvalid) for a run
// whose files cannot be read.
MlflowRun write_mlflow_run(const Path& store, const Path& folder);

}  // namespace primus
