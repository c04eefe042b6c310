// The modes of Primus's grammar, `<mode> [options] -- <command>`: how the processes of a command are started.
// A mode declares its options as a command does; help, manual and completion read them from there. It makes a
// launch plan (launch/plan.h), which --dry-run shows.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/command.h"
#include "launch/direct.h"
#include "launch/plan.h"
#include "launch/settings.h"

namespace primus::cli {

using Words = std::span<const std::string>;

// What a mode is given besides its own options.
struct ModeContext {
  const launch::Surroundings& surroundings;
  const launch::LauncherSettings& settings;
  bool debug = false;
  std::vector<std::string> config = {};  // the files of settings that were named
};

class Mode {
 public:
  virtual ~Mode() = default;
  // Its own options; those that all modes have come with ModeOptions.
  virtual void declare(Arguments& arguments) = 0;
  // How many of `words`, which have no "--", belong to the mode: the command begins behind them.
  virtual std::size_t count_own(const Arguments& arguments, Words words) const;
  // Whether it has nothing to run where no command is given: a script needs none.
  virtual bool needs_command(const launch::LauncherSettings&) const { return true; }
  // The switches debug and dry_run of its section.
  virtual launch::LauncherSettings::Switches switches(const launch::LauncherSettings& settings) const = 0;

  // Where a launcher further down the chain is told to show a plan and run nothing, by its option or by
  // settings; nullopt: nowhere. Then nothing of the chain is run: a job whose nodes show plans looks done.
  virtual std::optional<std::string> asks_for_dry_run_within(const ModeContext& /*context*/,
                                                             Words /*command*/) const {
    return std::nullopt;
  }

  // The whole chain for what stands behind "--". Throws Error for what would fail.
  virtual launch::Plan plan(const ModeContext& context, Words command) = 0;
  // The same where it is run on nodes that are not known yet, as a part of another chain.
  virtual launch::Plan plan_elsewhere(const ModeContext& context, Words command,
                                      const launch::ElsewhereNodes& nodes);
  // Runs it. Returns the exit code, unless this process becomes another program.
  virtual int run(const ModeContext& context, Words command, Console& console);
};

// The options in front of "--" that every mode has.
struct ModeOptions {
  std::vector<std::string> config;
  bool debug = false, dry_run = false;
  void declare(Arguments& arguments);
};

struct ModeEntry {
  CommandEntry about;  // `make` is null: a mode is made by the next member
  std::unique_ptr<Mode> (*make)();
};

// Of a mode down the chain, which may have more files of its own.
launch::LauncherSettings settings_within(const ModeContext& context, const ModeOptions& inner);

// Every mode, in the order help shows them.
std::span<const ModeEntry> modes();
const ModeEntry* find_mode(std::string_view name);
// All options of a mode, declared into `arguments`; keep what it returns as long as they are used.
struct DeclaredMode {
  std::unique_ptr<Mode> mode;
  std::unique_ptr<ModeOptions> common;
};
DeclaredMode declare(const ModeEntry& entry, Arguments& arguments);

// The same of a mode down the chain, whose own options were parsed into `inner`: of itself and what it
// starts.
std::optional<std::string> dry_run_of(const DeclaredMode& inner, const ModeEntry& entry,
                                      const ModeContext& context, Words command);

extern const ModeEntry kDirect, kContainer, kSlurm, kKubernetes;

// Which experiments can be looked for: the command runs here; in this folder, on a machine that may have
// other files elsewhere; or anywhere.
enum class Experiments { kHere, kInThisFolder, kElsewhere };

// What the launcher has to know of one of Primus's own commands, and whether it is one: `words` are parsed as
// the program will parse them. Throws Error for an unknown command or option, and for an experiment that is
// not there.
launch::DirectCommand check_command(Words words, bool debug, Experiments experiments);

// What stands behind the "--" of a mode that starts `direct`: "direct --numa -- train ...", as upstream
// writes it without the word ("--numa -- train ..."), or the command alone.
struct DirectWords {
  std::vector<std::string> options, command;
};
DirectWords direct_words(Words words);

// `text` may stand on a command line of mode `mode`: Error(kInvalid) for "NAME=VALUE" where NAME is a
// secret's.
void refuse_secrets(const std::vector<std::string>& assignments, std::string_view mode);

}  // namespace primus::cli
