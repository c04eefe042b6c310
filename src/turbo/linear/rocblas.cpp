#include "turbo/linear/rocblas.h"

#include "turbo/linear/shared_functions.h"

namespace primus::turbo::rocblas {

std::shared_ptr<const Library> open_library(std::span<const char* const> files, std::string& why) {
  auto library = std::make_shared<Library>();
  const bool found = open_functions(files, why, [&](auto&& find) {
    find(library->create_handle, "rocblas_create_handle");
    find(library->destroy_handle, "rocblas_destroy_handle");
    find(library->set_stream, "rocblas_set_stream");
    find(library->set_workspace, "rocblas_set_workspace");
    find(library->set_atomics_mode, "rocblas_set_atomics_mode");
    find(library->gemm_ex, "rocblas_gemm_ex");
  });
  if (found) return library;
  why = "cannot load rocBLAS: " + why + "; install ROCm's rocblas, or add its folder to LD_LIBRARY_PATH";
  return nullptr;
}

}  // namespace primus::turbo::rocblas
