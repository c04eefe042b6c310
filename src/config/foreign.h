// Experiments written with another framework's settings (TorchTitan's sections or MaxText's keys), translated
// to our trainer keys by the table presets/backends/NAME/keys.yaml (docs/backends.md explains its sections).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/backend_fields.h"
#include "config/experiment.h"
#include "config/problems.h"

namespace primus::config {

// Returns the value at a dotted path ("training.steps"), or null if there is none.
const Value* find_path(const Value& settings, std::string_view path);
// Sets the value at a dotted path; creates sections as needed.
void set_path(Value& settings, std::string_view path, Value value);
// Calls visit(path, member) for each setting: each member except the framework's sections.
template <class Visit>
void for_each_setting(const BackendFields& fields, const Value& settings, Visit&& visit,
                      const std::string& prefix = {}) {
  for (const Member& member : settings.members) {
    const std::string path = prefix + member.key;
    if (member.value.is_map() && !fields.find(path)) {
      for_each_setting(fields, member.value, visit, path + ".");
    } else {
      visit(path, member);
    }
  }
}

// Returns whether experiment.settings contains unchanged settings of TorchTitan or MaxText. In that case,
// experiment.trainer contains the translation of the settings that have a counterpart.
bool has_foreign_settings(const Experiment& experiment);

// Returns the setting at `path` if it is one that AMD Primus adds to the framework's settings (section
// `extra`); otherwise null.
const Value* find_extra(const BackendFields& fields, std::string_view path);

// Returns whether the framework, or AMD Primus's extension of it, has the setting or section `path`.
bool knows(const BackendFields& fields, std::string_view path);

// Adds a problem for each unknown setting, and for each value that the framework does not accept.
void check_settings(const BackendFields& fields, const Value& settings, Problems& problems);

struct Translation {
  Value settings;  // a map of our trainer keys; each value has the origin of the original setting
  Value recipe;    // a map of our trainer keys that the settings' recipe sets, and settings override
  std::string model_preset;  // our preset of the model that the settings name; empty: the settings describe
                             // the model
  Origin model_origin;
  // for each of our keys: the framework's setting from which it was translated
  std::map<std::string, std::string> names;
  std::vector<std::string> warnings;                        // warnings about settings whose counterparts
                                                            // differ in meaning
  std::map<std::string, std::vector<std::string>> dropped;  // settings without a counterpart, grouped by
                                                            // reason
};

// Translates `settings` to our keys. `ranks`: the number of ranks in the job, on which some settings depend.
// Adds a problem for each setting that the native engine does not support.
Translation to_own_keys(const BackendFields& fields, const Value& settings, std::int64_t ranks,
                        Problems& problems);

}  // namespace primus::config
