// Kahneman-Tversky optimization (KTO): learns from single answers, each labelled good or bad.
#include "lm/train/objectives/preference_objective.h"

namespace primus {

extern const ObjectiveEntry kStageKto{
    .stage = {.name = "kto",
              .meaning = "which learns from answers that are labelled good or bad",
              .material = config::Material::kPreferences,
              .fine_tunes = true,
              .default_beta = 0.1,
              .default_loss_type = "kto"},
    .make = [] { return make_preference_objective(PreferenceMethod::kKto); }};

}  // namespace primus
