#include "device/plugin_loader.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace primus {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "libprimus_", kSuffix = ".so";

std::string program_folder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0 || length == static_cast<ssize_t>(sizeof(path))) return {};
  return fs::path(std::string(path, static_cast<std::size_t>(length))).parent_path().string();
}

// A name becomes part of a file name, so it may have only letters, digits, underscores and hyphens.
bool is_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

// Names of device kinds have no hyphen. Names of all other plug-ins have a hyphen.
bool is_kind(std::string_view name) { return is_name(name) && name.find('-') == std::string_view::npos; }

std::string library_of(const std::string& folder, std::string_view kind) {
  return folder + "/" + std::string(kPrefix) + std::string(kind) + std::string(kSuffix);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::vector<std::string> plugin_folders() {
  std::vector<std::string> folders;
  if (const char* const path = std::getenv("PRIMUS_PLUGIN_PATH")) {
    const std::string_view all(path);
    for (std::size_t begin = 0; begin <= all.size();) {
      const std::size_t end = std::min(all.find(':', begin), all.size());
      if (end > begin) folders.emplace_back(all.substr(begin, end - begin));
      begin = end + 1;
    }
    return folders;
  }
  const std::string program = program_folder();
  if (program.empty()) return folders;
  folders.push_back(program);
  folders.push_back((fs::path(program).parent_path() / "lib" / "primus").string());
  return folders;
}

PluginLibrary open_plugin_library(std::string_view name, const char* entry, const std::string& what,
                                  const std::string& how_to_get) {
  const std::vector<std::string> folders = plugin_folders();
  std::string file;
  for (const std::string& folder : folders) {
    std::error_code ignored;
    if (is_name(name) && fs::exists(library_of(folder, name), ignored)) {
      file = library_of(folder, name);
      break;
    }
  }
  if (file.empty()) {
    throw Error(ErrorKind::kDependency,
                "cannot find the " + what + ": no " + std::string(kPrefix) + std::string(name) +
                    std::string(kSuffix) + " in " + (folders.empty() ? "any folder" : joined(folders)),
                how_to_get);
  }
  // Plug-ins are linked with -Bsymbolic, so each plug-in uses its own copy of libraries that the program also
  // contains.
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    const char* const reason = dlerror();
    throw Error(ErrorKind::kDependency,
                "the " + what + " in " + file + " cannot be loaded: " + (reason ? reason : "?"),
                "install the library that it needs, or choose another device");
  }
  void* const address = dlsym(library, entry);
  if (!address) {
    throw Error(ErrorKind::kDependency, file + " is not a valid " + what + ": it has no function " + entry,
                "remove it, or set PRIMUS_PLUGIN_PATH to the folder of the right plug-in");
  }
  return {file, address};
}

const DevicePlugin& load_plugin(std::string_view kind, std::uint64_t abi) {
  // True for kinds whose plug-ins can be built from these sources.
  const bool ours = kind == "cuda" || kind == "hip";
  const auto [file, entry] = open_plugin_library(
      kind, kDevicePluginEntry, "device plug-in '" + std::string(kind) + "'",
      ours ? "build it with scripts/build-gpu.sh " + std::string(kind) +
                 ", or set PRIMUS_PLUGIN_PATH to its folder"
           : "choose auto, cpu, cuda (NVIDIA) or hip (AMD); 'primus device list' shows the devices; or "
             "set PRIMUS_PLUGIN_PATH to the folder of the plug-in");
  const DevicePlugin* const plugin = reinterpret_cast<DevicePluginEntry>(entry)();
  if (plugin->abi != abi) {
    throw Error(ErrorKind::kDependency,
                "the device plug-in " + file + " and this program were built from different sources",
                "build both together, and install the plug-in next to the program");
  }
  if (plugin->kind != kind) {
    throw Error(ErrorKind::kDependency,
                file + " is the device plug-in of '" + plugin->kind + "', not of '" + std::string(kind) + "'",
                "restore the file's original name");
  }
  return *plugin;
}

std::vector<std::string> installed_plugins() {
  std::vector<std::string> kinds;
  for (const std::string& folder : plugin_folders()) {
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
      if (name.size() <= kPrefix.size() + kSuffix.size()) continue;
      const std::string kind = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
      if (is_kind(kind)) kinds.push_back(kind);
    }
  }
  std::sort(kinds.begin(), kinds.end());
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  return kinds;
}

}  // namespace primus
