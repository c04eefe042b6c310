// Ends a step on all ranks together when the run is asked to stop. A signal reaches the ranks at different
// times. If only one rank ended the step, the other ranks would wait for it. Not thread-safe.
#pragma once

#include "lm/train/objectives/rollouts/rank_table.h"
#include "lm/train/step/session.h"

namespace primus {

class StopVote {
 public:
  // Allocates persistent memory, so construct it in LossRule::prepare().
  explicit StopVote(TrainingSession& session);

  // Throws StopRequest on all ranks if any rank is asked to stop (TrainingSession::stop_requested). All ranks
  // call it.
  void take();

 private:
  TrainingSession& session_;
  RankTable votes_;
};

}  // namespace primus
