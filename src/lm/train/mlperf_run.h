// Content of the MLPerf log of a run with stage mlperf_pretrain: the experiment's settings under the names of
// MLPerf's rules, and the environment variables that AMD Primus's MLPerf scripts set:
//
//   MLLOG_SUBMISSION_{BENCHMARK,ORG,DIVISION,PLATFORM,STATUS,POC_NAME,POC_EMAIL}   submitter and system
//   MLLOG_CONFIG_FILENAME      config_filename; default: experiment.yaml, which has the run's settings
//   MLLOG_OUTPUT_FILE          path of the log; default: mlperf.log in the run's folder
//   MLLOG_SAVE_TO_FILE         0, false or no: use the default path
//   MLLOG_TRAIN_LOSS_LOG_FREQ  number of steps between logged training losses; 0: no losses; default: 1
//   MLLOG_BLOCK_TPUT_LOG       0, false or no: throughput is not logged
//
// The variables that the scripts use for batches, parallelism and precision are ignored, because the log
// reports the actual values. The target loss is a key of the experiment (target_eval_loss in
// config/keys.def).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/parallel/mesh.h"
#include "engine/runtime/parameters.h"
#include "lm/events/mlperf_log.h"
#include "lm/events/run_folder.h"

namespace primus::config {
struct TrainerConfig;
}

namespace primus {

// Returns the value of an environment variable; empty if it is not set.
using ReadVariable = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> process_variable(const std::string& name);

// Returns the log's options for a new run on these ranks. Appends to `notes` which fields required by MLPerf
// are not set. Throws Error(kInvalid) for a variable that must be a number but is not.
MlperfOptions mlperf_options_of(const config::TrainerConfig& trainer, const engine::MeshShape& shape,
                                int ranks, engine::Sharding sharding, const RunFolder& folder,
                                std::vector<std::string>& notes,
                                const ReadVariable& variable = process_variable);

}  // namespace primus
