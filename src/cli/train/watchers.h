// What watches a run besides its events: the machine of this rank.
#pragma once

#include "safe/watch/rank_watch.h"

namespace primus::cli {

struct Watchers {
  watch::RankWatch health = watch::RankWatch();
};

}  // namespace primus::cli
