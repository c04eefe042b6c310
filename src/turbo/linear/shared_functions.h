// Loads functions of a shared library at run time, under one of several file names.
#pragma once

#include <dlfcn.h>

#include <span>
#include <string>
#include <type_traits>

namespace primus::turbo {

// Opens the first of `files` that has all functions that `bind` requests: bind(find) calls find(pointer,
// "name") for each function. The library is never closed. Returns false if no file has all functions; `why`
// then contains the reason. If some of the files exist, `why` describes one of the existing files.
template <class Bind>
bool open_functions(std::span<const char* const> files, std::string& why, Bind&& bind) {
  std::string not_there, not_whole;
  for (const char* const file : files) {
    void* const opened = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
      if (not_there.empty()) not_there = dlerror();
      continue;
    }
    const char* missing = nullptr;
    bind([&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(opened, name));
      if (!function && !missing) missing = name;
    });
    if (!missing) return true;
    if (not_whole.empty()) not_whole = std::string(file) + " has no function " + missing;
    dlclose(opened);
  }
  why = not_whole.empty() ? not_there : not_whole;
  return false;
}

}  // namespace primus::turbo
