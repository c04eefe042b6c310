// The watch of this rank's machine and the alerts of the experiment, for one run.
#pragma once

#include "config/experiment.h"
#include "safe/watch/alerts.h"
#include "safe/watch/rank_watch.h"

namespace primus::cli {

struct Watchers {
  // Throws Error(kInvalid) if a rule of `alerts` is not valid.
  Watchers(const config::Experiment& experiment, Logger& log, int rank);

  watch::RankWatch health = watch::RankWatch();
  watch::Alerts alerts;
};

}  // namespace primus::cli
