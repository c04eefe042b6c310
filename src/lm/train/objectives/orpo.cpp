// Odds-ratio preference optimization (ORPO): learns the chosen answers and prefers them, without a reference
// model.
#include "lm/train/objectives/preference_objective.h"

namespace primus {

extern const ObjectiveEntry kStageOrpo{
    .stage = {.name = "orpo",
              .meaning =
                  "which learns the chosen answers of pairs and prefers them, without a reference model",
              .material = config::Material::kPreferences,
              .fine_tunes = true,
              .default_beta = 0.1},
    .make = [] { return make_preference_objective(PreferenceMethod::kOrpo); }};

}  // namespace primus
