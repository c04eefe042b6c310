// A command of the program: its arguments, its help and its work.
//
// A command declares each argument once; parsing, help and error messages use that declaration. A command
// parses, calls one function of a lower layer, and prints. Only commands print.
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

#include "base/error.h"
#include "base/files/file.h"
#include "base/terminal/terminal.h"
#include "launch/job_outline.h"
#include "launch/options/absent_input.h"

namespace primus::cli {

// Where a command writes: results to `out`; progress, notes and errors to `err`.
struct Console {
  Terminal out, err;
  bool debug = false;      // --debug before the mode or the command: logs to the screen
  std::string program;     // program name, for help and hints: "primus"
  std::string invocation;  // path of the invoked program, for commands that users copy: "build/bin/primus"

  // Prints text for people to standard output; control characters are escaped (printable()). Throws FileError
  // if writing fails.
  void print(std::string_view text) const;
  // Prints text in color if standard output supports it.
  void print(Color color, std::string_view text) const;
  // Writes output that a program or a file may consume: JSON, settings, requested text. Bytes are written
  // unchanged, except that terminals get the escaped form of print().
  void write(std::string_view bytes) const;
  // Writes a line to standard error, escaped like print(). Ignores write errors.
  void note(std::string_view text) const;
  // Writes lines that begin with "note: ".
  void notes(const std::vector<std::string>& texts) const;

 private:
  void write_raw(std::string_view bytes) const;
};

// An option or value of another program, which has no meaning in Primus. Using this option or value is an
// error with this explanation.
struct Refusal {
  std::string name;             // "--split-sentences", "fp16"
  std::string reason, instead;  // one sentence each, without a period
};

// Where an argument's value is stored. Optionals and vectors stay empty if the argument is not given; other
// targets keep their initial value, which help shows as the default.
using Target = std::variant<bool*, std::string*, std::int64_t*, double*, std::optional<std::string>*,
                            std::optional<std::int64_t>*, std::optional<double>*, std::vector<std::string>*>;

// A possible value, offered by completion, and its meaning.
struct Suggestion {
  std::string word, help;
};

struct Argument {
  std::vector<std::string> names;  // "--config", "-c"; empty: positional
  std::string value;               // "FILE"; empty: a switch. Shells complete paths for FILE, FOLDER ...
  std::string help;
  Target target;
  bool required = false;
  std::vector<std::string> choices = {};  // allowed values of a string; empty: any
  bool several = false;  // only for a list: all words up to the next option belong to the option's value
  // Returns the words that a shell offers for a partly typed value; null: none. After a word that ends in
  // '=', the shell adds no space.
  std::vector<Suggestion> (*suggest)(std::string_view typed) = nullptr;
  std::vector<Refusal> refused = {};  // values of a string that have no meaning here
  // Returns the elements of `values` that name files or folders, which must exist. Null: no value names a
  // file. Launchers check these files before they start processes.
  std::vector<std::string> (*reads)(const std::vector<std::string>& values) = nullptr;
  // The range of a number, which between() sets.
  std::optional<std::pair<double, double>> range = {};
  std::string shown_default = {};
  // Hint of the error if the option takes one value and is given different values; empty: the usual hint.
  std::string if_repeated = {};

  // Sets the range of a number: parsing refuses values below `minimum` or above `maximum`. double must
  // represent both bounds exactly.
  Argument& between(double minimum, double maximum);
  // Sets the default that help shows, for targets that stay empty if the option is not given.
  template <class Value>
  Argument& default_note(const Value& counts) {
    shown_default = fmt::format("{}", counts);
    return *this;
  }
};

// Returns all values. Use it as Argument::reads if each value names a file or folder.
std::vector<std::string> all_of_them(const std::vector<std::string>& values);

class Arguments {
 public:
  // names: "--config,--exp,-c".
  Argument& option(std::string_view names, std::string value, Target target, std::string help);
  Argument& flag(std::string_view names, bool& target, std::string help);
  Argument& positional(std::string value, Target target, std::string help);
  // Collects all words that match no declaration, in order; the command parses them itself.
  Argument& rest(std::string value, std::vector<std::string>& target, std::string help);
  // Declares options of other programs, such as "--split-sentences,--lang", whose use is an error. Help does
  // not show them.
  void refuse(std::string_view names, const std::string& reason, const std::string& instead);

  const std::vector<Argument>& all() const { return arguments_; }
  // Finds the argument called `name`, which may include a value ('--seed=1'); null if not declared.
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
  // Returns 0 or an exit code that the command documents. Throws errors.
  virtual int run(Console& console) = 0;
  // Launchers call this before they start a job. Throws an error that would prevent a job of this size from
  // starting, if the error can be detected now. `variables`: environment variables of the job, in addition to
  // the variables of this process. 0 nodes or ranks: the number is unknown.
  virtual void check_job(int /*nodes*/, int /*ranks_per_node*/,
                         const std::map<std::string, std::string>& /*variables*/) {}
  // Returns the input files of the job that do not exist now, if this machine can check them. Empty if
  // check_job throws.
  virtual std::vector<launch::AbsentInput> absent_inputs(
      const std::map<std::string, std::string>& /*variables*/) {
    return {};
  }
  // Returns what a launcher needs to know about the job; sizes and variables as for check_job(). Empty for
  // commands without an experiment. Throws the errors that check_job() throws.
  virtual launch::JobOutline outline(int /*nodes*/, int /*ranks_per_node*/,
                                     const std::map<std::string, std::string>& /*variables*/) {
    return {};
  }
  // Returns whether the ranks connect through the native engine's transport, which needs a secret. Ranks of
  // other frameworks have their own transport.
  virtual bool needs_token() const { return true; }
};

// The section of help that lists a command. Help sorts commands by section, then by number, then by name.
enum class Section : std::uint8_t {
  kTrain,
  kUse,  // using a trained model
  kData,
  kModel,
  kBenchmark,
  kPlan,
  kConfig,
  kDependencies,
  kMachine,
  kProgram,  // about Primus
};
struct Place {
  Section section = Section::kTrain;
  int number = 100;
};

// A command's source file defines its entry. The build finds the entry (primus_entry_list in
// cmake/PrimusBuild.cmake), so no other file has to name it:
//   extern const CommandEntry kModelInfo{"model info", "Shows what a model is", {}, "primus model info run",
//                                        make_command<ModelInfo>, {Section::kModel}};
struct CommandEntry {
  std::string_view name;      // "model verify"
  std::string_view summary;   // one line, no period
  std::string_view details;   // paragraphs; may be empty
  std::string_view examples;  // one per line, without the indentation
  std::unique_ptr<Command> (*make)();
  Place place = {};
  // Whether the command can run as several ranks of one job (--nproc, --nnodes ...).
  bool has_ranks = false;
};

// Returns all commands, in the order of help.
std::span<const CommandEntry> commands();

// --overwrite: allows a command to replace an existing file or folder with its result.
class OverwriteFlag {
 public:
  void declare(Arguments& args,
               const char* help = "replace an existing file or folder; without this option, Primus refuses") {
    args.flag("--overwrite", overwrite_, help);
  }
  Existing existing() const { return overwrite_ ? Existing::kReplace : Existing::kRefuse; }
  // Refuses --overwrite if the command writes no file. `options`: the options with which it writes a file.
  void require(bool writes, const char* options) const {
    if (overwrite_ && !writes)
      throw invalid(fmt::format("--overwrite has no effect without {}", options), "remove --overwrite");
  }

 private:
  bool overwrite_ = false;
};

template <class C>
std::unique_ptr<Command> make_command() {
  return std::make_unique<C>();
}

}  // namespace primus::cli
