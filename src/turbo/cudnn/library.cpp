#include "turbo/cudnn/library.h"

#include <dlfcn.h>

#include <type_traits>

namespace primus::turbo::cudnn {

std::string version_text(std::size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
         std::to_string(version % 100);
}

std::shared_ptr<const Library> open_library(const char* file, std::string& why) {
  void* const opened = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!opened) {
    why = std::string("cannot load cuDNN: ") + dlerror() + "; install NVIDIA's cuDNN " +
          version_text(kOldestVersion) + " or newer, or add its folder to LD_LIBRARY_PATH";
    return nullptr;
  }
  auto library = std::make_shared<Library>();
  why.clear();
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(opened, name));
    if (!function && why.empty()) why = std::string(file) + " has no function " + name;
  };
  find(library->get_version, "cudnnGetVersion");
  find(library->last_error, "cudnnGetLastErrorString");
  find(library->create, "cudnnCreate");
  find(library->destroy, "cudnnDestroy");
  find(library->set_stream, "cudnnSetStream");
  find(library->create_descriptor, "cudnnBackendCreateDescriptor");
  find(library->destroy_descriptor, "cudnnBackendDestroyDescriptor");
  find(library->set_attribute, "cudnnBackendSetAttribute");
  find(library->get_attribute, "cudnnBackendGetAttribute");
  find(library->finalize, "cudnnBackendFinalize");
  find(library->execute, "cudnnBackendExecute");
  if (library->get_version) {
    library->version = library->get_version();
    library->version_text = version_text(library->version);
    // Checks the version before the functions. An old version may also lack functions, but only a message
    // about the version tells the user what to do.
    if (library->version < kOldestVersion) {
      why = std::string(file) + " is cuDNN " + library->version_text + ", older than " +
            version_text(kOldestVersion);
    }
  }
  if (!why.empty()) {
    why += "; install NVIDIA's cuDNN " + version_text(kOldestVersion) + " or newer";
    return nullptr;
  }
  return library;
}

std::shared_ptr<const Library> open_library(std::string& why) {
  std::string first;
  for (const char* const file :
       {"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9", "/usr/lib/x86_64-linux-gnu/libcudnn.so.9"}) {
    if (std::shared_ptr<const Library> library = open_library(file, why)) return library;
    if (first.empty()) first = why;
  }
  why = first;
  return nullptr;
}

}  // namespace primus::turbo::cudnn
