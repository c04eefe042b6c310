// A command of the program: what it takes, what it says about itself, and what it does.
//
// A command declares each argument once; parsing, help and error messages come from that declaration. It
// parses, calls one function of a floor below, and prints: nothing else prints in this program.
//
//   class Info final : public Command {
//     void declare(Arguments& args) override { args.positional("DIR", folder_, "model folder"); }
//     int run(Console& console) override { ... return 0; }
//   };
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/files/file.h"
#include "base/terminal/terminal.h"
#include "launch/absent_input.h"

namespace primus::cli {

// Where a command writes: results to `out`, everything about the work (progress, notes, errors) to `err`.
struct Console {
  Terminal out, err;
  bool debug = false;      // --debug before the mode or the command: the log goes to the screen
  std::string program;     // its name, for help and hints: "primus"
  std::string invocation;  // as it was called, for commands to copy: "build/bin/primus"

  // Text for people, to standard output: with whatever a terminal would obey escaped (printable()). Throws
  // FileError when it cannot write.
  void print(std::string_view text) const;
  // The same in a color, where standard output has any.
  void print(Color color, std::string_view text) const;
  // What a program or a file may take: JSON, settings, a text that was asked for. Byte by byte, but for
  // terminals, which get it as print() gives it.
  void write(std::string_view bytes) const;
  // Writes a line to standard error, if it can; escaped like print().
  void note(std::string_view text) const;
  // Lines that begin "note: ".
  void notes(const std::vector<std::string>& texts) const;

 private:
  void write_raw(std::string_view bytes) const;
};

// An option or a value of the program that a command stands in for, which has no meaning here: naming it says
// so.
struct Refusal {
  std::string name;             // "--split-sentences", "fp16"
  std::string reason, instead;  // one sentence each, without a period
};

// Where an argument's value goes. Optionals and vectors stay empty when it is not given; the others keep
// what they hold, which help shows as the default.
using Target = std::variant<bool*, std::string*, std::int64_t*, double*, std::optional<std::string>*,
                            std::optional<std::int64_t>*, std::optional<double>*, std::vector<std::string>*>;

// A word that may stand for a value, and what it means.
struct Suggestion {
  std::string word, help;
};

struct Argument {
  std::vector<std::string> names;  // "--config", "-c"; none: positional
  std::string value;               // "FILE"; empty: a switch. FILE, FOLDER ... make shells complete paths
  std::string help;
  Target target;
  bool required = false;
  std::vector<std::string> choices = {};  // of a string; empty: any
  bool several = false;                   // of a list: one mention takes all words up to the next option
  // Words for a shell to offer, given what was typed of one so far; null: none. Those that end in '=' are
  // typed on.
  std::vector<Suggestion> (*suggest)(std::string_view typed) = nullptr;
  std::vector<Refusal> refused = {};  // of a string: values that have no meaning here
  // Of its values those that name files or folders which have to be there; null: none. Launchers look for
  // them before they start anything.
  std::vector<std::string> (*reads)(const std::vector<std::string>& values) = nullptr;
  // See between() and default_note().
  std::optional<std::pair<double, double>> range = {};
  std::string shown_default = {};

  // For a number: what is below `least` or above `most` is refused when the command line is read. Both are
  // exact as double.
  Argument& between(double least, double most);
  // For a target that is empty where the option is not given: the value that then counts, for help.
  template <class Value>
  Argument& default_note(const Value& counts) {
    shown_default = fmt::format("{}", counts);
    return *this;
  }
};

// For Argument::reads: each of the values names one.
std::vector<std::string> all_of_them(const std::vector<std::string>& values);

class Arguments {
 public:
  // names: "--config,--exp,-c".
  Argument& option(std::string_view names, std::string value, Target target, std::string help);
  Argument& flag(std::string_view names, bool& target, std::string help);
  Argument& positional(std::string value, Target target, std::string help);
  // Everything that no declaration takes, in the order written: the command judges it itself.
  Argument& rest(std::string value, std::vector<std::string>& target, std::string help);
  // names: "--split-sentences,--lang". Not shown by help.
  void refuse(std::string_view names, const std::string& reason, const std::string& instead);

  const std::vector<Argument>& all() const { return arguments_; }
  // The one called `name`, which may have its value behind ('--seed=1'); null where there is none.
  const Argument* find(std::string_view name) const;
  const std::optional<Argument>& rest() const { return rest_; }
  const std::vector<Refusal>& refusals() const { return refusals_; }

 private:
  std::vector<Argument> arguments_;
  std::optional<Argument> rest_;
  std::vector<Refusal> refusals_;
};

class Command {
 public:
  virtual ~Command() = default;
  virtual void declare(Arguments& arguments) = 0;
  // The exit code: 0, or what the command documents. Errors are thrown.
  virtual int run(Console& console) = 0;
  // Throws what would keep a job of so many ranks from starting, as far as it can be known before: for
  // launchers. `variables`: what the job's environment will have besides this process's.
  // 0 nodes or ranks: how many is not known.
  virtual void check_job(int /*nodes*/, int /*ranks_per_node*/,
                         const std::map<std::string, std::string>& /*variables*/) {}
  // Files that the job will read and that are not there now, as far as can be known here; none where
  // check_job throws.
  virtual std::vector<launch::AbsentInput> absent_inputs(
      const std::map<std::string, std::string>& /*variables*/) {
    return {};
  }
  // Whether its ranks talk by this engine's connections, which need a secret. Another framework's do not.
  virtual bool needs_token() const { return true; }
};

// Where help lists a command: by section, then by number, then by name.
enum class Section : std::uint8_t {
  kTrain,
  kUse,  // what was trained
  kData,
  kModel,
  kBenchmark,
  kPlan,
  kConfig,
  kDependencies,
  kMachine,
  kProgram,  // Primus itself
};
struct Place {
  Section section = Section::kTrain;
  int number = 100;
};

// A command's file defines its entry, and that is all that the program needs to know it (primus_entry_list in
// cmake/PrimusBuild.cmake):
//   extern const CommandEntry kModelInfo{"model info", "Shows what a model is", {}, "primus model info
//   my-run",
//                                        make_command<ModelInfo>, {Section::kModel}};
struct CommandEntry {
  std::string_view name;      // "model verify"
  std::string_view summary;   // one line, no period
  std::string_view details;   // paragraphs; may be empty
  std::string_view examples;  // one per line, without the indentation
  std::unique_ptr<Command> (*make)();
  Place place = {};
  // Whether several processes work on it as the ranks of one job (--nproc, --nnodes ...).
  bool has_ranks = false;
};

// Every command, in the order help shows them.
std::span<const CommandEntry> commands();

// --overwrite, the one way to say that a command may replace what has the name of its result.
class OverwriteFlag {
 public:
  void declare(Arguments& args,
               const char* help = "replace what is there under that name; without it, it is refused") {
    args.flag("--overwrite", overwrite_, help);
  }
  Existing existing() const { return overwrite_ ? Existing::kReplace : Existing::kRefuse; }

 private:
  bool overwrite_ = false;
};

template <class C>
std::unique_ptr<Command> make_command() {
  return std::make_unique<C>();
}

}  // namespace primus::cli
