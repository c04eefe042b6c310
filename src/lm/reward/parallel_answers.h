// Scores answers in several threads.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "lm/reward/reward.h"

namespace primus {

// Returns RewardSettings::workers, or the number of cores if it is 0.
std::size_t worker_count(const RewardSettings& settings);

// Calls score(answer, worker) for each answer, by up to `workers` threads. Each thread passes its own worker
// number, which is less than `workers`. Results are in the order of the answers. If a call throws, no further
// answers are scored and the first exception is thrown.
std::vector<Reward> score_in_parallel(std::span<const ScoredAnswer> answers, std::size_t workers,
                                      const std::function<Reward(const ScoredAnswer&, std::size_t)>& score);

}  // namespace primus
