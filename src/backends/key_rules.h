// What presets/backends/NAME/keys.yaml says of Primus's trainer keys: those that are called otherwise there,
// those that are refused, and those without a counterpart. Not thread-safe: it collects what was dropped.
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
  // Both must outlive it.
  KeyRules(const config::Experiment& experiment, const config::BackendFields& fields);

  // Section `together`: code translates it.
  bool is_together(std::string_view key) const { return together_.contains(key); }
  // Section `own_defaults`: passed on only where somebody set it.
  bool is_own_default(std::string_view key) const { return own_defaults_.contains(key); }
  // Section `rename`: the field's name there; the key's own where it has no line.
  std::string renamed(std::string_view key) const;
  // Section `values`.
  config::Value value_there(std::string_view key, const config::Value& value) const;
  // Of a key that has no field there, or is Primus's own (.own() in config/keys.def): notes it as dropped, or
  // throws where the framework would then train something else than the experiment says.
  void check_missing(const config::KeySpec& key, const config::Value& value);
  // Why the key has no counterpart: it is Primus's own, or section `nothing` says it; empty: nobody knows it.
  std::string_view reason_for(const config::KeySpec& key) const;

  // Keys that were set and dropped, by reason.
  const std::map<std::string, std::vector<std::string>>& dropped() const { return dropped_; }

 private:
  const config::Experiment& experiment_;
  const config::BackendFields& fields_;
  std::set<std::string, std::less<>> together_, own_defaults_;
  std::map<std::string, std::string, std::less<>> reasons_;    // by key
  std::vector<std::pair<std::string, std::string>> prefixes_;  // "odc_", reason
  std::map<std::string, std::vector<std::string>> dropped_;
};

// What the framework of the experiment does not have, at the place where `key` was set: an Error of kind
// kUnsupported.
Error unsupported_there(const config::Experiment& experiment, std::string_view key, const std::string& what,
                        const std::string& hint);

// Whether a value says the same as a word of a table: "null", "false", "0".
bool says(const config::Value& value, std::string_view word);

}  // namespace primus::backends
