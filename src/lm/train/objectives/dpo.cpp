// Direct preference optimization (DPO) and its variants: learns to prefer the chosen answer of each pair.
#include "lm/train/objectives/preference_objective.h"

namespace primus {

extern const ObjectiveEntry kStageDpo{
    .stage = {.name = "dpo",
              .meaning = "which learns from pairs of a chosen and a rejected "
                         "answer, compared with the model at the start",
              .material = config::Material::kPreferences,
              .fine_tunes = true,
              .default_beta = 0.1,
              .default_loss_type = "sigmoid"},
    .make = [] { return make_preference_objective(PreferenceMethod::kDpo); }};

}  // namespace primus
