// Experiments that are written with another framework's settings: TorchTitan's sections or MaxText's keys,
// translated into Primus's own trainer keys by the table presets/backends/NAME/keys.yaml (docs/backends.md
// explains its sections).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/backend_fields.h"
#include "config/experiment.h"
#include "config/problems.h"

namespace primus::config {

// The value at a dotted path ("training.steps"), or null where there is none.
const Value* find_path(const Value& settings, std::string_view path);
// Sets it, making sections on the way.
void set_path(Value& settings, std::string_view path, Value value);
// Calls visit(path, member) for each setting: members that are no section of the framework.
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

// Whether experiment.settings are those of its framework, TorchTitan or MaxText, as the file has them.
// `trainer` then has what they mean here, as far as it is known.
bool has_foreign_settings(const Experiment& experiment);

// What Primus adds to the framework's settings (section `extra`); null where it adds no such one.
const Value* find_extra(const BackendFields& fields, std::string_view path);

// Whether the framework, or Primus's use of it, has the setting `path`, or a section of that name.
bool knows(const BackendFields& fields, std::string_view path);

// Adds a problem for each setting that nobody knows, and for each value that the framework cannot take.
void check_settings(const BackendFields& fields, const Value& settings, Problems& problems);

struct Translation {
  Value settings;  // a map of Primus's trainer keys; each value has the place of what it comes from
  std::string
      model_preset;  // of Primus, whose architecture the settings name; empty: they describe one themselves
  Origin model_origin;
  std::map<std::string, std::string> names;  // by key of ours: what the setting is called there
  std::vector<std::string> warnings;         // what means something else, and was normalised or not
  std::map<std::string, std::vector<std::string>>
      dropped;  // settings without a counterpart, by the reason why
};

// `ranks` of the job, where batches or parallel sizes follow from them. Adds a problem for each setting that
// the native engine has nothing like.
Translation to_own_keys(const BackendFields& fields, const Value& settings, std::int64_t ranks,
                        Problems& problems);

}  // namespace primus::config
