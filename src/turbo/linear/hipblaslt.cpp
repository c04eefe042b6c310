#include "turbo/linear/hipblaslt.h"

#include "turbo/linear/shared_functions.h"

namespace primus::turbo::hipblaslt {
namespace {

constexpr int kMajor = 100000, kMinor = 100;

std::string install_hint() {
  return "; install ROCm's hipblaslt " + version_text(kOldestVersion) +
         " or newer, or add its folder to LD_LIBRARY_PATH";
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / kMajor) + "." + std::to_string(version % kMajor / kMinor) + "." +
         std::to_string(version % kMinor);
}

int version_of(const Library& library, Handle handle) {
  int version = 0;
  return library.get_version(handle, &version) == Status::kSuccess ? version : 0;
}

std::shared_ptr<const Library> open_library(std::span<const char* const> files, std::string& why) {
  auto library = std::make_shared<Library>();
  const bool found = open_functions(files, why, [&](auto&& find) {
    find(library->create, "hipblasLtCreate");
    find(library->destroy, "hipblasLtDestroy");
    find(library->get_version, "hipblasLtGetVersion");
    find(library->desc_create, "hipblasLtMatmulDescCreate");
    find(library->desc_destroy, "hipblasLtMatmulDescDestroy");
    find(library->desc_set, "hipblasLtMatmulDescSetAttribute");
    find(library->layout_create, "hipblasLtMatrixLayoutCreate");
    find(library->layout_destroy, "hipblasLtMatrixLayoutDestroy");
    find(library->preference_create, "hipblasLtMatmulPreferenceCreate");
    find(library->preference_destroy, "hipblasLtMatmulPreferenceDestroy");
    find(library->preference_set, "hipblasLtMatmulPreferenceSetAttribute");
    find(library->heuristic, "hipblasLtMatmulAlgoGetHeuristic");
    find(library->matmul, "hipblasLtMatmul");
  });
  if (found) return library;
  why = "cannot load hipBLASLt: " + why + install_hint();
  return nullptr;
}

Handle start(const Library& library, std::string& why) {
  Handle handle = nullptr;
  if (const Status status = library.create(&handle); status != Status::kSuccess) {
    why = "hipBLASLt cannot be initialized: status " + std::to_string(static_cast<int>(status));
    return nullptr;
  }
  const int version = version_of(library, handle);
  if (version >= kOldestVersion) return handle;
  why = "hipBLASLt " + version_text(version) + " is older than " + version_text(kOldestVersion) +
        install_hint();
  library.destroy(handle);
  return nullptr;
}

}  // namespace primus::turbo::hipblaslt
