// Finds and loads device plug-ins: libprimus_<kind>.so.
//
// Searched, in this order: the folders of PRIMUS_PLUGIN_PATH (separated by colons; nothing else is searched
// when it is set), the program's own folder, ../lib/primus beside it. A library stays loaded until the
// program ends. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/plugin.h"

namespace primus {

// The folders that are searched now, in order.
std::vector<std::string> plugin_folders();

// A plug-in of any sort: its file, and the address of its entry point.
struct PluginLibrary {
  std::string file;
  void* entry;
};
// Loads libprimus_<name>.so and finds its function `entry`. `what` it is ("device plug-in 'hip'") and how to
// get it are for messages. Throws Error(kDependency) as load_plugin() does.
PluginLibrary open_plugin_library(std::string_view name, const char* entry, const std::string& what,
                                  const std::string& how_to_get);

// The plug-in of `kind`. Throws Error(kDependency) when there is no such library, when it cannot be loaded
// (a library that it needs is missing), or when it was built from other sources than this program (`abi`
// differs). The message names the file and the next step.
const DevicePlugin& load_plugin(std::string_view kind, std::uint64_t abi);

// Kinds for which a library is there, loadable or not, sorted.
std::vector<std::string> installed_plugins();

}  // namespace primus
