// The functions of cuBLASLt for LtProducts (linear/lt_products.h). NVIDIA's header declares these functions.
// They are loaded from the installed library. Only nvcc compiles this file.
#pragma once

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "turbo/linear/library_product.h"

namespace primus::turbo::cuda {

struct CublasLtApi {
  using Handle = cublasLtHandle_t;
  using Desc = cublasLtMatmulDesc_t;
  using Layout = cublasLtMatrixLayout_t;
  using Preference = cublasLtMatmulPreference_t;
  using Algorithm = cublasLtMatmulAlgo_t;
  using Result = cublasLtMatmulHeuristicResult_t;
  using Stream = cudaStream_t;

  static constexpr const char* kName = "cuBLASLt";
  static constexpr auto kSuccess = CUBLAS_STATUS_SUCCESS;
  static constexpr auto kCompute = CUBLAS_COMPUTE_32F;
  static constexpr auto kScale = CUDA_R_32F;
  static constexpr auto kTransA = CUBLASLT_MATMUL_DESC_TRANSA, kTransB = CUBLASLT_MATMUL_DESC_TRANSB;
  static constexpr auto kPlain = CUBLAS_OP_N, kTransposed = CUBLAS_OP_T;
  static constexpr auto kMaxWorkspace = CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;

  // Pointers to functions of the library, with the types that NVIDIA's header declares.
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;

  // Throws Error if the library is not installed.
  static CublasLtApi open();

  static cudaDataType_t type_of(DType dtype) {
    switch (dtype) {
      case DType::kF32:
        return CUDA_R_32F;
      case DType::kF16:
        return CUDA_R_16F;
      case DType::kF8E4M3:
        return CUDA_R_8F_E4M3;
      case DType::kF8E5M2:
        return CUDA_R_8F_E5M2;
      default:
        return CUDA_R_16BF;
    }
  }
  static cublasStatus_t state_of(const Result& result) { return result.state; }
  std::string tuning_name(Handle) const { return "cublaslt-" + std::to_string(version()); }

  void hint(Desc desc, const LibraryProduct& product, int multiprocessors) const {
    if (product.fast) {
      const std::int8_t fast = 1;
      desc_set(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast));
    }
    if (product.gemm.spared > 0) {
      const std::int32_t target = std::max(multiprocessors - product.gemm.spared, 1);
      desc_set(desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &target, sizeof(target));
    }
  }
  void prefer(Preference preference, const ProductKey& key) const {
    // Allows only algorithms that add partial sums in fp32, not in the type of the result.
    const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions));
    const std::uint32_t a = key.b_alignment, b = key.a_alignment, c = key.c_alignment;
    preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof(a));
    preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof(b));
    preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof(c));
    preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof(c));
  }
  // The first operand of the library is our second operand. desc_set() stores only the pointers to the
  // scales; the library reads the scales when the product runs.
  void scale(Desc desc, const LibraryProduct& product) const {
    desc_set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &product.b_scale, sizeof(const void*));
    desc_set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &product.a_scale, sizeof(const void*));
  }
};

inline CublasLtApi CublasLtApi::open() {
  void* library = nullptr;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library) break;
  }
  if (!library) {
    throw Error(ErrorKind::kDependency, std::string("cannot load cuBLASLt: ") + dlerror(),
                "install CUDA's libcublas (version 13 or 12), or add its folder to LD_LIBRARY_PATH");
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function) throw Error(ErrorKind::kDependency, std::string("cuBLASLt has no function ") + name);
  };
  CublasLtApi api;
  find(api.create, "cublasLtCreate");
  find(api.destroy, "cublasLtDestroy");
  find(api.matmul, "cublasLtMatmul");
  find(api.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(api.desc_create, "cublasLtMatmulDescCreate");
  find(api.desc_destroy, "cublasLtMatmulDescDestroy");
  find(api.desc_set, "cublasLtMatmulDescSetAttribute");
  find(api.layout_create, "cublasLtMatrixLayoutCreate");
  find(api.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(api.preference_create, "cublasLtMatmulPreferenceCreate");
  find(api.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(api.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(api.check, "cublasLtMatmulAlgoCheck");
  find(api.version, "cublasLtGetVersion");
  return api;
}

}  // namespace primus::turbo::cuda
