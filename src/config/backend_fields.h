// What another training framework knows as settings, read from the tables presets/backends/NAME:
//
//   fields.yaml   each of its settings with type, default and choices (written by scripts/backend-tables.py)
//   keys.yaml     what they are here, and what of ours they lack (written by hand; docs/backends.md)
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
  Value fallback;  // null: none, or null itself
  std::vector<std::string> choices;
  std::string flag, on, off;  // of a command-line option: its name; of a switch, what sets and clears it
};

class BackendFields {
 public:
  // Reads both tables of `framework` from the first of `preset_dirs` with a folder backends/NAME. Throws
  // Error(kInvalid) where there is none, or a table is damaged.
  static BackendFields load(std::string_view framework, std::span<const std::filesystem::path> preset_dirs);

  const std::string& framework() const { return framework_; }
  // The folder that the tables were read from.
  const std::filesystem::path& folder() const { return folder_; }
  const BackendField* find(std::string_view name) const;
  const std::map<std::string, BackendField, std::less<>>& all() const { return fields_; }
  // Whether some field lies in the section `prefix`: "training" of "training.seq_len".
  bool is_section(std::string_view prefix) const;
  // keys.yaml.
  const Value& keys() const { return keys_; }
  // The member `section` of keys.yaml, an empty map where it has none.
  const Value& keys(std::string_view section) const;

  // Throws an Error at the value's place where it has not the field's type, or is none of its choices.
  static void check(const BackendField& field, const Value& value);

 private:
  std::string framework_;
  std::filesystem::path folder_;
  std::map<std::string, BackendField, std::less<>> fields_;
  Value keys_;
};

}  // namespace primus::config
