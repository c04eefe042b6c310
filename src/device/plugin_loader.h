// Finds and loads device plug-ins: libprimus_<kind>.so.
//
// Search order: the folders of PRIMUS_PLUGIN_PATH (separated by colons; if the variable is set, only these
// folders are searched), the folder of the program, and ../lib/primus relative to the program's folder. A
// library stays loaded until the program ends. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/plugin.h"

namespace primus {

// Returns the current search folders, in order.
std::vector<std::string> plugin_folders();

// A loaded plug-in: its file, and the address of its entry point.
struct PluginLibrary {
  std::string file;
  void* entry;
};
// Loads libprimus_<name>.so and finds its function `entry`. `what` (for example "device plug-in 'hip'") and
// `how_to_get` are for messages. Throws Error(kDependency) as load_plugin() does.
PluginLibrary open_plugin_library(std::string_view name, const char* entry, const std::string& what,
                                  const std::string& how_to_get);

// Returns the plug-in of `kind`. Throws Error(kDependency) if the library does not exist, cannot be loaded
// (for example if a library that it needs is missing), or was not built from this program's sources
// (`abi` differs). The message names the file and the next step.
const DevicePlugin& load_plugin(std::string_view kind, std::uint64_t abi);

// Returns, in sorted order, the kinds of devices whose library exists, even if it cannot be loaded.
std::vector<std::string> installed_plugins();

}  // namespace primus
