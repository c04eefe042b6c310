// The objectives that compare answers: stages dpo, kto, orpo, cpo and reward. preference_dataset.h reads
// their data, and preference_rule.h computes their losses.
#pragma once

#include <memory>

#include "lm/train/objectives/objective.h"
#include "lm/train/objectives/rules/preference_settings.h"

namespace primus {

std::unique_ptr<Objective> make_preference_objective(PreferenceMethod method);

// Returns the settings of the losses. Throws Error(kInvalid) at a key whose value does not fit the method.
PreferenceSettings preference_settings_of(const config::Experiment& experiment, PreferenceMethod method);

}  // namespace primus
