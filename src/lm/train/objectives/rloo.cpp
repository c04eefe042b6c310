// REINFORCE leave-one-out (RLOO): learns from rewards for the model's own answers.
#include "lm/train/objectives/rollout_objective.h"

namespace primus {

extern const ObjectiveEntry kStageRloo{
    .stage = {.name = "rloo",
              .meaning = "which learns from rewards for the model's own "
                         "answers, each compared with the other answers to its prompt",
              .material = config::Material::kPrompts,
              .fine_tunes = true,
              .default_beta = 0.05},
    .make = [] { return make_rollout_objective(PolicyMethod::kRloo); }};

}  // namespace primus
