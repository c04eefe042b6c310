// Exports runs in MLflow's file format: a folder "mlruns" that `mlflow ui` shows and `mlflow
// migrate-filestore` imports into a database.
//
//   FOLDER/<experiment>/meta.yaml
//   FOLDER/<experiment>/<run>/{meta.yaml, metrics/<name>, params/<name>, tags/<name>}
//
// A run's folder always maps to the same run of the MLflow store: a repeated export updates that run, even if
// the run was stopped, killed or resumed in between. Every file is replaced by rename, meta.yaml last. Free
// functions without state; one writer per store at a time.
#pragma once

#include <cstdint>
#include <string>

#include "base/files/file.h"

namespace primus {

struct MlflowRun {
  std::string experiment;     // mlflow_experiment_name, or work_group and user_name
  std::string name;           // mlflow_run_name, or exp_name
  std::string experiment_id;  // digits; the id of an existing experiment of this name, if it exists
  std::string run_id;         // 32 hexadecimal digits
  std::int64_t steps = 0;     // number of lines of metrics.jsonl
};

// Exports the run in `folder` into `store`: every line of metrics.jsonl, the evaluations, and the settings
// that are not null. Lines have no timestamps, so times are computed backwards from the file's last change by
// the durations of the steps. Throws FileError, and Error(kInvalid) for a run whose files cannot be read.
MlflowRun write_mlflow_run(const Path& store, const Path& folder);

}  // namespace primus
