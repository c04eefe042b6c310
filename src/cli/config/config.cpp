// primus config show | validate | schema | reference
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text/json_text.h"
#include "cli/command.h"
#include "cli/options/experiment.h"
#include "cli/problem_json.h"
#include "cli/train/external.h"
#include "lm/model/family.h"
#include "lm/train/settings/training_settings.h"

namespace primus::cli {
namespace {

class ConfigShow final : public Command {
 public:
  void declare(Arguments& args) override {
    experiment_.declare(args, false);
    args.flag("--origin", origin_, "show where each value came from");
    args.flag("--yaml", yaml_, "print one self-contained experiment file");
    args.flag("--json", json_, "as JSON");
  }
  int run(Console& console) override {
    const config::Experiment experiment = experiment_.load(console);
    if (yaml_) {
      console.write(exported_text(experiment, builtin_families(), 1));
    } else if (json_) {
      console.write(config::to_json(planned(experiment, console), origin_));
    } else {
      console.print(config::show(planned(experiment, console), origin_));
    }
    return 0;
  }

 private:
  // Returns the experiment with the values that its run would derive. If the run could not start, for example
  // because data are missing, returns the experiment unchanged.
  static config::Experiment planned(const config::Experiment& experiment, Console& console) {
    try {
      return planned_experiment(experiment, builtin_families(), 1);
    } catch (const Error& error) {
      console.note(fmt::format(
          "note: values that a run derives from its data and its model are not shown: {}", error.what()));
      return experiment;
    }
  }

  ExperimentArguments experiment_;
  bool origin_ = false, yaml_ = false, json_ = false;
};

class ConfigValidate final : public Command {
 public:
  void declare(Arguments& args) override {
    experiment_.declare(args);
    args.flag("--json", json_, "print the verdict as JSON");
  }
  int run(Console& console) override {
    if (!json_) {
      const config::Experiment experiment = checked(console);
      console.print(fmt::format("valid: {} would write to {}\n", experiment.exp_name,
                                experiment.output_dir().string()));
      return 0;
    }
    try {
      const config::Experiment experiment = checked(console);
      const nlohmann::json verdict{{"valid", true},
                                   {"ignored", experiment.ignored},
                                   {"replaced", experiment.replaced},
                                   {"warnings", experiment.warnings},
                                   {"problems", nlohmann::json::array()}};
      console.write(json_text(verdict, -1) + "\n");
      return 0;
    } catch (const Error& error) {
      nlohmann::json verdict = problem_json(error);
      verdict["valid"] = false;
      console.write(json_text(verdict, -1) + "\n");
      return error.exit_code();
    }
  }

 private:
  // For another framework, renders the experiment to find unsupported settings.
  config::Experiment checked(const Console& console) const {
    config::Experiment experiment = experiment_.load(console);
    if (experiment.framework != "native") {
      check_external(experiment, 1, 1);
    } else {
      check_data_paths(experiment);
    }
    return experiment;
  }

  ExperimentArguments experiment_;
  bool json_ = false;
};

// A command that prints the text returned by a function.
template <std::string (*text)()>
class Print final : public Command {
 public:
  void declare(Arguments&) override {}
  int run(Console& console) override {
    console.write(text());
    return 0;
  }
};

class ConfigReference final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("WORD", &word_, "a key, or a word to search in the names and meanings of keys").required =
        false;
    args.flag("--json", json_, "as JSON");
  }
  int run(Console& console) override {
    if (json_) {
      console.write(config::reference_json(word_));
    } else if (word_.empty()) {
      console.write(config::markdown_reference());
    } else {
      console.print(config::reference_text(word_));
    }
    return 0;
  }

 private:
  std::string word_;
  bool json_ = false;
};

}  // namespace

extern const CommandEntry kConfigShow{
    "config show",
    "Prints an experiment as it would run",
    kOverrideHelp,
    "primus config show --config examples/native/configs/CPU/llama_124M-pretrain.yaml\n"
    "primus config show --config exp.yaml --origin lr=1e-3\n"
    "primus config show --yaml load=FOLDER data_path=FILE   # the experiment of a run without a file",
    make_command<ConfigShow>,
    {Section::kConfig, 1}};

extern const CommandEntry kConfigValidate{
    "config validate",
    "Checks an experiment file",
    "The exit code is 0 if the file is valid, and 2 if not. Each problem is shown with its file, line and "
    "column, and the next step. With --json, \"problems\" lists them all.",
    "primus config validate --config exp.yaml\n"
    "primus config validate --config exp.yaml --json lr=1e-3",
    make_command<ConfigValidate>,
    {Section::kConfig, 2}};

extern const CommandEntry kConfigSchema{"config schema",
                                        "Prints the JSON Schema of experiment files, for editors",
                                        {},
                                        "primus config schema > experiment.schema.json",
                                        make_command<Print<config::json_schema>>,
                                        {Section::kConfig, 3}};

extern const CommandEntry kConfigReference{
    "config reference",
    "Prints every key with its type, default, range and meaning",
    "With a WORD, prints only the key of that name. If no key has that name, prints the keys with the word "
    "in their name, in their meaning, or in the names that other programs use.",
    "primus config reference > config.md\n"
    "primus config reference lr\n"
    "primus config reference learning_rate --json",
    make_command<ConfigReference>,
    {Section::kConfig, 4}};

}  // namespace primus::cli
