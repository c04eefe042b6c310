// model:FOLDER: the score that a reward model gives to prompt and answer. This file only declares the
// function: training loads the model and computes its scores (lm/train/objectives/rollouts/reward_models.h).
#include <string>

#include "lm/reward/column_reward.h"
#include "lm/reward/reward_entry.h"

namespace primus {
namespace {

std::unique_ptr<RewardFunction> make_model(const RewardText&, const RewardSettings&) {
  return make_answer_reward("model", [](const ScoredAnswer&) -> Reward {
    return {.value = {}, .problem = "a reward model computes scores only in training"};
  });
}

}  // namespace

extern const RewardEntry kModelReward{
    "model", "model:FOLDER", "the score of a reward model, a folder that 'primus train reward' wrote",
    make_model};

}  // namespace primus
