#include "cli/train/watchers.h"

#include "config/trainer_config.h"

namespace primus::cli {

Watchers::Watchers(const config::Experiment& experiment, Logger& log, int rank)
    : alerts(watch::parse_alerts(experiment.trainer->alerts), {.rank = rank, .log = &log}) {}

}  // namespace primus::cli
