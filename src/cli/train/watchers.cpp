#include "cli/train/watchers.h"

#include <cstdlib>

#include "config/trainer_config.h"
#include "lm/events/supervision_alerts.h"
#include "lm/train/settings/training_settings.h"

namespace primus::cli {
namespace {

// A program that a supervised run starts inherits the variable, and may train another run.
bool is_supervised(const config::Experiment& experiment) {
  const char* const run = std::getenv(kSupervisedVariable);
  return run && run_folder_of(experiment).root() == run;
}

}  // namespace

Watchers::Watchers(const config::Experiment& experiment, Logger& log, int rank)
    : alerts(watch::parse_alerts(experiment.trainer->alerts),
             {.rank = rank, .supervised = is_supervised(experiment), .log = &log}) {}

}  // namespace primus::cli
