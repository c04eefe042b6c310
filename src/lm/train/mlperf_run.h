// What a run with stage mlperf_pretrain says of itself in its MLPerf log: settings of the experiment under
// the names of MLPerf's rules, and what Primus's scripts for MLPerf leave in the environment:
//
//   MLLOG_SUBMISSION_{BENCHMARK,ORG,DIVISION,PLATFORM,STATUS,POC_NAME,POC_EMAIL}   who submits what
//   MLLOG_CONFIG_FILENAME         config_filename; without it experiment.yaml, the run's record of its
//   settings MLLOG_OUTPUT_FILE             the log's file; without it mlperf.log in the run's folder
//   MLLOG_SAVE_TO_FILE            0, false or no: mlperf.log all the same
//   MLLOG_TRAIN_LOSS_LOG_FREQ     steps between losses of training; 0: none. Without it every step
//   MLLOG_BLOCK_TPUT_LOG          0, false or no: no throughput
//
// Their variables of batches, parallelism and precision are not read: the log says what is so. Of the target,
// which is a key of experiments, see target_eval_loss in config/keys.def.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/trainer_config.h"
#include "engine/mesh.h"
#include "engine/parameters.h"
#include "lm/events/mlperf_log.h"
#include "lm/events/run_folder.h"

namespace primus {

// Reads an environment variable. Empty: not set.
using ReadVariable = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> process_variable(const std::string& name);

// Of a run of `ranks` that begins anew. What the rules ask of a submission and nobody has said goes to
// `notes`. Throws Error(kInvalid) for a variable that is no number.
MlperfOptions mlperf_options_of(const config::TrainerConfig& trainer, const engine::MeshShape& shape,
                                int ranks, engine::Sharding sharding, const RunFolder& folder,
                                std::vector<std::string>& notes,
                                const ReadVariable& variable = process_variable);

}  // namespace primus
