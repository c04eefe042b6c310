// The rules of presets/backends/NAME/keys.yaml for our trainer keys: renamed keys, refused keys, and keys
// without a counterpart. Not thread-safe, because KeyRules collects dropped keys.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/backend_fields.h"
#include "config/experiment.h"

namespace primus::backends {

class KeyRules {
 public:
  // Both arguments must outlive this object.
  KeyRules(const config::Experiment& experiment, const config::BackendFields& fields);

  // Returns whether section `together` lists the key. Code translates such keys together with other keys.
  bool is_together(std::string_view key) const { return together_.contains(key); }
  // Returns whether section `own_defaults` lists the key. Such keys are passed on only if the user set them.
  bool is_own_default(std::string_view key) const { return own_defaults_.contains(key); }
  // Returns the framework's name for the key, from section `rename`. If the section does not list the key,
  // returns the key's own name.
  std::string renamed(std::string_view key) const;
  // Returns the framework's value for `value`, from section `values`.
  config::Value value_there(std::string_view key, const config::Value& value) const;
  // Records that a key is dropped, because it has no field in the framework or exists only in this program
  // (.own() in config/keys.def). Throws if training without the key would differ from the experiment.
  void check_missing(const config::KeySpec& key, const config::Value& value);
  // Returns the reason why the key has no counterpart: "only the native engine has it" if the key exists only
  // in this program, otherwise the text in section `nothing`. Returns an empty text for an unknown key.
  std::string_view reason_for(const config::KeySpec& key) const;

  // Keys that were set and dropped, by reason.
  const std::map<std::string, std::vector<std::string>>& dropped() const { return dropped_; }

 private:
  const config::Experiment& experiment_;
  const config::BackendFields& fields_;
  std::set<std::string, std::less<>> together_, own_defaults_;
  // for each key, the reason why it has no counterpart
  std::map<std::string, std::string, std::less<>> reasons_;
  std::vector<std::pair<std::string, std::string>> prefixes_;  // prefix and reason, such as "odc_"
  std::map<std::string, std::vector<std::string>> dropped_;
};

// Returns an Error of kind kUnsupported, at the position where `key` was set, for a setting that the
// experiment's framework does not support.
Error unsupported_there(const config::Experiment& experiment, std::string_view key, const std::string& what,
                        const std::string& hint);

// Returns whether a value equals a table's word: "null", "false", "0".
bool says(const config::Value& value, std::string_view word);

}  // namespace primus::backends
