// Keys that an experiment sets although they change nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"

namespace primus::config {

// Returns whether the experiment itself, not a preset, sets the key to something other than its default or
// derived value.
bool is_said(const Experiment& experiment, std::string_view key);

// Adds a sentence to `warnings` for each key without effect in a native experiment. Considers only keys that
// the experiment itself (not a preset) sets to something other than the default.
// Keys that depend on a model that `load` names are left out.
void warn_of_keys_without_effect(const Experiment& experiment, std::vector<std::string>& warnings);

// Returns sentences about settings of the experiment's file that have no effect. A run does not report these
// settings, because experiments for random tokens and for benchmarks often have them. For the plan of a run.
std::vector<std::string> unused_settings_of_file(const Experiment& experiment);

// Adds a sentence for each key that only training on text uses. The stage of `experiment` must train on
// conversations, preferences or prompts.
void warn_of_keys_of_text(const Experiment& experiment, std::vector<std::string>& warnings);

// Adds the sentences about keys that depend on the loaded model. `experiment` has the settings of that model.
void warn_of_model_keys_without_effect(const Experiment& experiment, std::vector<std::string>& warnings);

}  // namespace primus::config
