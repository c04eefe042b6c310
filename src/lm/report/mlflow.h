// Runs as MLflow keeps them in files: a folder "mlruns", which `mlflow ui` shows and `mlflow
// migrate-filestore` brings into a database.
//
//   FOLDER/<experiment>/meta.yaml
//   FOLDER/<experiment>/<run>/{meta.yaml, metrics/<name>, params/<name>, tags/<name>}
//
// A run's folder is always the same run of the store: exported again, it goes on there, however often it was
// stopped, killed or resumed meanwhile. Every file is replaced by rename, meta.yaml last. Free functions
// without state; one writer of a store at a time.
#pragma once

#include <cstdint>
#include <string>

#include "base/files/file.h"

namespace primus {

struct MlflowRun {
  std::string experiment;     // mlflow_experiment_name, or work_group and user_name
  std::string name;           // mlflow_run_name, or exp_name
  std::string experiment_id;  // digits; that of an experiment of this name which is there already
  std::string run_id;         // 32 hexadecimal digits
  std::int64_t steps = 0;     // lines of metrics.jsonl
};

// Writes the run in `folder` into `store`: every line of metrics.jsonl, the evaluations, the settings that
// are not null. Lines have no time of day, so times are counted back from the file's last change, by the
// durations of the steps. Throws FileError, and Error(kInvalid) for a run whose files cannot be read.
MlflowRun write_mlflow_run(const Path& store, const Path& folder);

}  // namespace primus
