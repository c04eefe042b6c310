// The settings of another training framework, read from the tables in presets/backends/NAME:
//
//   fields.yaml   each setting of the framework with type, default and choices (written by
//                 scripts/backend-tables.py)
//   keys.yaml     the translation of these settings to our keys, and our keys without a counterpart (written
//                 by hand; docs/backends.md)
//
// Immutable after loading; reading from several threads is safe.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys.h"
#include "config/value.h"

namespace primus::config {

struct BackendField {
  std::string name;  // "training.seq_len", "num_layers"
  KeyType type = KeyType::kAny;
  Value fallback;  // null: no default, or the default is null
  std::vector<std::string> choices;
  std::string flag, on, off;  // flag: name of the command-line option; on, off: the options that set and
                              // clear a switch
};

class BackendFields {
 public:
  // Reads both tables of `framework` from the first of `preset_dirs` with a folder backends/NAME. Throws
  // Error(kInvalid) if no such folder exists, or if a table is damaged.
  static BackendFields load(std::string_view framework, std::span<const std::filesystem::path> preset_dirs);

  const std::string& framework() const { return framework_; }
  // Returns the folder of the tables.
  const std::filesystem::path& folder() const { return folder_; }
  const BackendField* find(std::string_view name) const;
  const std::map<std::string, BackendField, std::less<>>& all() const { return fields_; }
  // Returns whether `prefix` is the section of a field, as "training" is the section of "training.seq_len".
  bool is_section(std::string_view prefix) const;
  // Returns whether experiments may mix the framework's settings with our keys.
  bool accepts_own_keys() const;
  // Returns the content of keys.yaml.
  const Value& keys() const { return keys_; }
  // Returns the member `section` of keys.yaml; an empty map if it is missing.
  const Value& keys(std::string_view section) const;

  // Throws an Error at the value's position if the value does not have the field's type or is not one of its
  // choices.
  static void check(const BackendField& field, const Value& value);

 private:
  std::string framework_;
  std::filesystem::path folder_;
  std::map<std::string, BackendField, std::less<>> fields_;
  Value keys_;
};

}  // namespace primus::config
