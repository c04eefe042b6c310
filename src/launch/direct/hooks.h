// Programs that run on each node before the command: hooks and patches.
//
// A hook folder has *.sh and *.py files for every command, and in GROUP/NAME/ ("train/pretrain") files for
// one command. Hooks run in the order of their names, with the command's words as arguments. Patches are
// files that the user names. Output lines of the form
//
//   env.NAME=VALUE set a variable for later programs
//   extra.key=VALUE add "--key VALUE" to the command
//
// are applied; all other lines are shown. A patch that is not needed ends with exit code 2. Any other nonzero
// exit code ends the launch.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/file.h"

namespace primus::launch {

struct HookCommand {
  std::string group, name;         // "train", "pretrain"; name may be empty
  std::vector<std::string> words;  // all words of the command
};

// Returns the hooks in `folders`, in the order they run. Throws Error(kInvalid) for a missing folder.
std::vector<Path> hook_files(const std::vector<Path>& folders, const HookCommand& command);

// Returns the interpreter of a file: "bash", "python3", or none.
std::vector<std::string> interpreter_of(const Path& file);

// Runs one file and returns the arguments that it adds. Sets the reported variables in this process, except
// those for which `is_fixed` returns true: the user has set these variables. `show` receives output lines.
// Throws Error(kDependency) if the file fails.
enum class HookKind { kHook, kPatch };
std::vector<std::string> run_hook(HookKind kind, const Path& file, const std::vector<std::string>& words,
                                  const std::function<bool(const std::string& name)>& is_fixed,
                                  const std::function<void(std::string_view)>& show);

}  // namespace primus::launch
