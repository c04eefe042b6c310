// Contrastive preference optimization (CPO) and SimPO: prefers chosen answers without a reference model.
#include "lm/train/objectives/preference_objective.h"

namespace primus {

extern const ObjectiveEntry kStageCpo{
    .stage = {.name = "cpo",
              .meaning =
                  "which prefers the chosen answers of pairs, without a reference model (includes SimPO)",
              .material = config::Material::kPreferences,
              .fine_tunes = true,
              .default_beta = 0.1,
              .default_loss_type = "sigmoid"},
    .make = [] { return make_preference_objective(PreferenceMethod::kCpo); }};

}  // namespace primus
