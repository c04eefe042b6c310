#include "lm/train/objectives/stop_vote.h"

#include "base/system/stop_request.h"

namespace primus {

StopVote::StopVote(TrainingSession& session) : session_(session), votes_(session.rank(), 1, 1, true) {}

void StopVote::take() {
  votes_.at(0, 0) = session_.stop_requested() ? 1 : 0;
  votes_.exchange(session_);
  if (!session_.rank().measuring() && votes_.at(0, 0) > 0) throw StopRequest();
}

}  // namespace primus
