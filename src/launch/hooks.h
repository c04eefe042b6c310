// Programs that run on each node before the command: hooks and patches.
//
// A hook folder has *.sh and *.py for every command, and in GROUP/NAME/ ("train/pretrain") those of one; they
// run in the order of their names, with the command's words as arguments. Patches are named one by one. Lines
// they write that say
//
//   env.NAME=VALUE     set a variable for what runs after them
//   extra.key=VALUE    add "--key VALUE" to the command
//
// and all other lines are shown. A patch that ends with code 2 was not needed; every other code but 0 ends
// the launch.
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
  std::vector<std::string> words;  // all of the command
};

// Those of `folders`, in the order they run. Throws Error(kInvalid) for a folder that is not there.
std::vector<Path> hook_files(const std::vector<Path>& folders, const HookCommand& command);

// How a file is run: "bash", "python3", or as it is.
std::vector<std::string> interpreter_of(const Path& file);

// Runs one file and gives the arguments that it adds. Its variables are set in this process, but those for
// which `is_fixed`: who typed them knows better. `show` gets what is to be shown, line by line.
// Throws Error(kDependency) where it fails.
enum class HookKind { kHook, kPatch };
std::vector<std::string> run_hook(HookKind kind, const Path& file, const std::vector<std::string>& words,
                                  const std::function<bool(const std::string& name)>& is_fixed,
                                  const std::function<void(std::string_view)>& show);

}  // namespace primus::launch
