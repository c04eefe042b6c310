// The modes of AMD Primus's command line, `<mode> [options] -- <command>`: how the processes of a command are
// started. A mode declares its options like a command, for parsing, help, the manual and completion. A mode
// builds a launch plan (launch/plan.h), which --dry-run shows.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/command.h"
#include "launch/direct/direct.h"
#include "launch/plan.h"
#include "launch/settings.h"

namespace primus::cli {

using Words = std::span<const std::string>;

// Input of a mode in addition to its own options.
struct ModeContext {
  const launch::Surroundings& surroundings;
  const launch::LauncherSettings& settings;
  bool debug = false;
  std::vector<std::string> config = {};  // settings files given by the user
};

class Mode {
 public:
  virtual ~Mode() = default;
  // Declares the mode's own options. ModeOptions declares the options that all modes share.
  virtual void declare(Arguments& arguments) = 0;
  // Counts the leading words that belong to the mode, for `words` without "--". The remaining words are the
  // command.
  virtual std::size_t count_own(const Arguments& arguments, Words words) const;
  // Returns whether a command is required. A script replaces the command.
  virtual bool needs_command(const launch::LauncherSettings&) const { return true; }
  // Returns the settings debug and dry_run of the mode's section.
  virtual launch::LauncherSettings::Switches switches(const launch::LauncherSettings& settings) const = 0;

  // Returns the option or setting that asks a later launcher of the chain for a dry run; nullopt if there is
  // none. If there is one, the entire chain is only shown, because a job whose nodes only print plans would
  // look finished.
  virtual std::optional<std::string> asks_for_dry_run_within(const ModeContext& /*context*/,
                                                             Words /*command*/) const {
    return std::nullopt;
  }

  // Plans the entire chain for the words after "--". If the run would fail with a known Error, throws this
  // Error now.
  virtual launch::Plan plan(const ModeContext& context, Words command) = 0;
  // Like plan(), for a mode inside another chain that runs on nodes not known yet.
  virtual launch::Plan plan_elsewhere(const ModeContext& context, Words command,
                                      const launch::ElsewhereNodes& nodes);
  // Runs the plan. Returns the exit code; does not return if this process execs another program.
  virtual int run(const ModeContext& context, Words command, Console& console);
};

// The options before "--" that all modes share.
struct ModeOptions {
  std::vector<std::string> config;
  bool debug = false, dry_run = false;
  void declare(Arguments& arguments);
};

struct ModeEntry {
  CommandEntry about;  // `make` is null, because the next member creates the mode
  std::unique_ptr<Mode> (*make)();
};

// Returns the settings of a mode further down the chain, including its own settings files.
launch::LauncherSettings settings_within(const ModeContext& context, const ModeOptions& inner);

// Returns all modes, in the order of help.
std::span<const ModeEntry> modes();
const ModeEntry* find_mode(std::string_view name);
// A mode and all of its options, declared into `arguments`. The DeclaredMode must exist while `arguments` is
// used.
struct DeclaredMode {
  std::unique_ptr<Mode> mode;
  std::unique_ptr<ModeOptions> common;
};
DeclaredMode declare(const ModeEntry& entry, Arguments& arguments);

// Like Mode::asks_for_dry_run_within(), but checks both this mode and the modes that this mode starts. The
// options of this mode were parsed into `inner`.
std::optional<std::string> dry_run_of(const DeclaredMode& inner, const ModeEntry& entry,
                                      const ModeContext& context, Words command);

extern const ModeEntry kDirect, kContainer, kSlurm, kKubernetes;

// Where a command runs. The input files that can be checked now depend on this place. kHere: on this machine;
// all files are checked. kInThisFolder: in this folder, on a machine whose other folders may differ.
// kElsewhere: on a machine whose files are unknown; files that exist here are checked. kInAbsentFolder: like
// kElsewhere, in a folder that does not exist here; files with relative names are not checked.
enum class Experiments { kHere, kInThisFolder, kElsewhere, kInAbsentFolder };

// Checks whether `words` are a command of this program and returns the properties that the launcher needs.
// Parses `words` in the same way as the program that the launcher starts. Throws Error for an unknown command
// or option and for a missing experiment.
launch::DirectCommand check_command(Words words, bool debug, Experiments experiments);

// The words after the "--" of a mode that starts `direct`: "direct --numa -- train ...", the short form of
// AMD Primus without the word ("--numa -- train ..."), or only the command.
struct DirectWords {
  std::vector<std::string> options, command;
};
DirectWords direct_words(Words words);
// Like dry_run_of(), for `primus direct`. Parses `words` with direct_words().
std::optional<std::string> dry_run_of_direct(const ModeContext& context, Words words);

// Throws Error(kInvalid) if an assignment "NAME=VALUE" would put a secret on a command line of `mode`.
void refuse_secrets(const std::vector<std::string>& assignments, std::string_view mode);
// Throws Error(kInvalid) if a setting in the words of a command has a secret as its value, such as
// "env.HF_TOKEN=VALUE" and "hf_access_token=VALUE". The message does not contain the value.
void refuse_secret_settings(Words command, std::string_view mode);

}  // namespace primus::cli
