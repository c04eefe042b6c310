// The arguments that name an experiment, shared by the commands that read one: --config FILE and overrides.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/command.h"
#include "config/experiment.h"

namespace primus::cli {

class ExperimentArguments {
 public:
  // `arguments` must outlive this object. `needs_file` false: a model to load and data do, too. `module`: the
  // one to run where the experiment has several, and post_trainer fine-tunes where there is no file.
  void declare(Arguments& arguments, bool needs_file = true, const std::string& module = "pre_trainer");
  bool names_a_file() const { return !file_.empty(); }
  bool names_a_model() const;  // an override load=FOLDER, which may stand in for the file
  const std::vector<std::string>& overrides() const { return overrides_; }
  // The framework, over the experiment's and over an override that stands before.
  void choose_framework(const std::string& name) { overrides_.push_back("framework=" + name); }
  const std::string& file() const { return file_; }
  // Reads and validates it, and says on standard error what is odd or ignored. `ranks` of the job, where they
  // are known; `variables` count before those of this process. Throws Error.
  config::Experiment load(const Console& console, std::int64_t ranks = 1,
                          const std::map<std::string, std::string>& variables = {}) const;
  // The parts of load(): reads and validates, and writes nothing; writes what is odd or ignored.
  config::Experiment read(std::int64_t ranks = 1,
                          const std::map<std::string, std::string>& variables = {}) const;
  static void announce(const config::Experiment& experiment, const Console& console);
  // Throws its mistakes where the file is here; files that only the job's nodes have are left to them.
  void check_where_it_is(const std::map<std::string, std::string>& variables) const;
  // The same again under further overrides, without a word.
  config::Experiment load_with(const std::vector<std::string>& settings, std::int64_t ranks);

 private:
  config::Experiment load_without_file() const;
  void refuse_unknown_options(const std::string& start) const;
  void refuse_lone_word(const std::string& start) const;

  const Arguments* declared_ = nullptr;
  std::string file_, module_ = "pre_trainer";
  std::vector<std::string> overrides_;
};

// Sets the experiment's variables for this process. Before threads are started.
void apply_environment(const config::Experiment& experiment);

// What the help of these commands says about overrides.
inline constexpr std::string_view kOverrideHelp =
    "Overrides change the experiment for this once: key=value, --key value, --key=value or --flag, where key "
    "is a trainer key (lr), a top-level key (exp_name) or a dotted path. 'primus config reference' has them "
    "all.";

}  // namespace primus::cli
