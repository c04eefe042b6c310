// Reward models: learns a score of texts, from pairs of a better and a worse answer.
#include "lm/train/objectives/preference_objective.h"

namespace primus {

extern const ObjectiveEntry kStageReward{
    .stage = {.name = "reward",
              .meaning = "which learns to score texts, so that the chosen answer of each pair scores higher",
              .material = config::Material::kPreferences,
              .fine_tunes = true},
    .make = [] { return make_preference_objective(PreferenceMethod::kReward); }};

}  // namespace primus
