// Group-relative policy optimization (GRPO) and its variants: learns from rewards for the model's own
// answers.
#include "lm/train/objectives/rollout_objective.h"

namespace primus {

extern const ObjectiveEntry kStageGrpo{
    .stage = {.name = "grpo",
              .meaning = "which learns from rewards for the model's own "
                         "answers, compared within groups of answers to one prompt",
              .material = config::Material::kPrompts,
              .fine_tunes = true,
              .chooses_policy_loss = true,
              .default_beta = 0.0,
              .default_loss_type = "dapo"},
    .make = [] { return make_rollout_objective(PolicyMethod::kGrpo); }};

}  // namespace primus
