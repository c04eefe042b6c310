// The arguments that name an experiment: --config FILE and overrides. Shared by all commands that read an
// experiment.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/command.h"
#include "config/experiment.h"

namespace primus::cli {

class ExperimentArguments {
 public:
  // `arguments` must outlive this object. If `needs_file` is false, the user may omit the file and name data
  // and a model to load by settings. `module`: the module to run if the experiment has several; if no file is
  // given, post_trainer or the setting sft_dataset_name means fine-tuning. `stage`: with post_trainer, the
  // stage if no file is given. With post_trainer, `data` is short for sft_dataset_name.
  void declare(Arguments& arguments, bool needs_file = true, const std::string& module = "pre_trainer",
               const std::string& stage = "sft");
  bool names_a_file() const { return !file_.empty(); }
  bool names_a_model() const;  // has an override load=FOLDER, which can replace the file
  const std::vector<std::string>& overrides() const { return overrides_; }
  // Sets the framework; overrides the experiment and earlier overrides.
  void choose_framework(const std::string& name) { overrides_.push_back("framework=" + name); }
  const std::string& file() const { return file_; }
  // Reads and validates the experiment; writes warnings about odd or ignored settings to standard error.
  // `ranks`: ranks of the job, if known. `variables` have priority over the environment of this process.
  // Throws Error.
  config::Experiment load(const Console& console, std::int64_t ranks = 1,
                          const std::map<std::string, std::string>& variables = {}) const;
  // The two parts of load(): read() reads and validates without output, and announce() writes the warnings.
  config::Experiment read(std::int64_t ranks = 1,
                          const std::map<std::string, std::string>& variables = {}) const;
  static void announce(const config::Experiment& experiment, const Console& console);
  // Returns the lines of announce(), which begin with "note: " or "warning: ".
  static std::vector<std::string> announcements(const config::Experiment& experiment);
  // Returns the files of settings from which read() made `experiment`.
  std::vector<std::filesystem::path> files_of(const config::Experiment& experiment) const;
  // Returns the variables of this process that read() has read.
  const std::set<std::string>& variables_read() const { return *variables_; }
  // Throws errors of the experiment if its file exists here. Files that exist only on the job's nodes are
  // checked on the nodes.
  void check_where_it_is(const std::map<std::string, std::string>& variables) const;
  // Reads the experiment again with additional overrides. Writes no warnings.
  config::Experiment load_with(const std::vector<std::string>& settings, std::int64_t ranks);

 private:
  // Returns the overrides, with sft_dataset_name instead of `data`.
  std::vector<std::string> settings() const;
  config::Experiment load_without_file() const;
  bool fine_tunes() const;
  void refuse_unknown_options(const std::string& start) const;
  void refuse_lone_word(const std::string& start) const;

  const Arguments* declared_ = nullptr;
  std::string file_, module_ = "pre_trainer", stage_ = "sft";
  std::vector<std::string> overrides_;
  // Commands load the experiment up to four times, before and after the number of ranks is determined.
  std::shared_ptr<config::SettingsFiles> files_ = std::make_shared<config::SettingsFiles>();
  std::shared_ptr<std::set<std::string>> variables_ = std::make_shared<std::set<std::string>>();
};

// Throws errors that training would find in the names of the data of a native experiment: a weight without a
// path, and epochs of random tokens.
void check_data_paths(const config::Experiment& experiment);

// Sets the experiment's environment variables in this process. Call before threads are started.
void apply_environment(const config::Experiment& experiment);

// The paragraph about overrides in the help of commands that read an experiment.
inline constexpr std::string_view kOverrideHelp =
    "Overrides change the experiment for this command only: key=value, --key value, --key=value or --flag. "
    "The key is a trainer key (lr), a top-level key (exp_name) or a dotted path. 'primus config reference' "
    "lists all keys.";

}  // namespace primus::cli
