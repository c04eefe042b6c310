// A call of a reward function that ends soon when the run is asked to stop: rewards may take minutes.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "lm/reward/reward.h"

namespace primus {

// Returns function.score(answers). When another thread, or a signal handler, sets *stop, it interrupts the
// function, and the results have no meaning. `stop` may be null. Throws the errors of score().
std::vector<Reward> stoppable_score(RewardFunction& function, std::span<const ScoredAnswer> answers,
                                    const std::atomic<bool>* stop);

}  // namespace primus
