// The steps between reading a file and checking its keys: ${VAR} substitution, `extends:`, and finding
// presets.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"
#include "config/value.h"

namespace primus::config {

using ReadVariable = std::function<std::optional<std::string>(const std::string&)>;

// Replaces ${VAR} and ${VAR:default} in every string of `value`; $${ is an escaped ${. A string with a
// replaced variable gets the type that the new text would have without quotes: bool, number, null, [list] or
// string. Throws an Error for a variable that is not set and has no default.
void expand_variables(Value& value, const ReadVariable& read);

// Loads settings files and all files that they extend.
class FileLoader {
 public:
  // `files` must not be null.
  FileLoader(ReadVariable read_variable, std::vector<std::filesystem::path> preset_dirs,
             std::shared_ptr<SettingsFiles> files)
      : read_variable_(std::move(read_variable)),
        preset_dirs_(std::move(preset_dirs)),
        settings_files_(std::move(files)) {}

  // Returns the file with its variables replaced, merged over the files that it extends.
  Value load(const std::filesystem::path& path);
  Value load(const std::shared_ptr<const Source>& source);

  // Loads the preset named `name` (kind: "models" or "modules") from the experiment's folder or a preset
  // folder, where the framework's subfolder comes first. A preset may extend presets of its kind by name,
  // without a path. Throws an Error at the name's position if there is no such preset.
  Value load_preset(const Value& name, std::string_view kind, std::string_view framework,
                    const std::filesystem::path& experiment_dir);
  const std::vector<std::filesystem::path>& preset_dirs() const { return preset_dirs_; }
  // Returns the variables that the loaded files use as ${...} outside of sections `env`.
  const std::set<std::string>& variables() const { return variables_; }
  // Returns the files that have been loaded.
  const std::set<std::filesystem::path>& loaded() const { return loaded_; }

 private:
  Value load(Value document, const std::filesystem::path& path);
  void apply_extends(Value& document, const std::filesystem::path& path);
  // Returns the preset folders for `kind` and `framework`, in search order.
  std::vector<std::filesystem::path> preset_folders(std::string_view kind, std::string_view framework) const;
  std::filesystem::path find_preset(const Value& name, std::string_view kind, std::string_view framework,
                                    const std::filesystem::path& experiment_dir) const;

  ReadVariable read_variable_;
  std::vector<std::filesystem::path> preset_dirs_;
  std::shared_ptr<SettingsFiles> settings_files_;
  std::filesystem::path first_;  // the first file read: the experiment, which no hint may suggest as a preset
  std::vector<std::filesystem::path> chain_;  // files being loaded, outermost first, to find cycles
  // While a preset is loaded: the folders with presets that the loaded preset may extend by name.
  std::vector<std::filesystem::path> extended_dirs_;
  std::set<std::string> variables_;
  std::set<std::filesystem::path> loaded_;
  int files_ = 0;
};

// Returns PRIMUS_PRESETS, then the presets installed with the program, then the presets of its source tree.
std::vector<std::filesystem::path> default_preset_dirs(const ReadVariable& read);

}  // namespace primus::config
