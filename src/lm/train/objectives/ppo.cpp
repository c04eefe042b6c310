// Proximal policy optimization (PPO): learns from rewards for the model's own answers, with a value model.
#include "lm/train/objectives/rollout_objective.h"

namespace primus {

extern const ObjectiveEntry kStagePpo{
    .stage = {.name = "ppo",
              .meaning = "which learns from rewards for the model's own "
                         "answers, compared with the rewards that a value model expects",
              .material = config::Material::kPrompts,
              .fine_tunes = true,
              .trains_values = true,
              .default_beta = 0.05},
    .make = [] { return make_rollout_objective(PolicyMethod::kPpo); }};

}  // namespace primus
