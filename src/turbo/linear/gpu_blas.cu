#include "turbo/linear/gpu_blas.h"

#if defined(__CUDACC__) && !defined(__HIP__)

#include <cublasLt.h>
#include <dlfcn.h>

#include <array>
#include <map>
#include <tuple>

#include "base/error.h"

namespace primus::turbo::cuda {
namespace {

using gpu::cuda::Context;

constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;

// The functions we call, by their own types.
struct Functions {
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
};

// One product's shape: everything that an algorithm may depend on.
using Key = std::tuple<GemmRole, DType, DType, bool, std::int64_t, std::int64_t, std::int64_t, unsigned,
                       unsigned, unsigned>;

struct Plan {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;
};

// Of one stream.
class CublasLt {
 public:
  CublasLt() { open(); }
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  ~CublasLt() {
    for (auto& [key, plan] : plans_) {
      f_.desc_destroy(plan.product);
      for (cublasLtMatrixLayout_t layout : {plan.left, plan.right, plan.result}) f_.layout_destroy(layout);
    }
    if (handle_) f_.destroy(handle_);
  }

  bool multiply(Context& context, const Gemm& call);

 private:
  void open();
  static void check(cublasStatus_t status, const char* what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw Error(
        ErrorKind::kIo,
        std::string("cuBLASLt cannot ") + what + ": status " + std::to_string(static_cast<int>(status)),
        "look at the kernel's log (dmesg) for errors of the GPU");
  }
  Plan make_plan(const Gemm& call, const Key& key);
  static cudaDataType_t type_of(DType dtype) { return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

  Functions f_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

void CublasLt::open() {
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
  find(f_.create, "cublasLtCreate");
  find(f_.destroy, "cublasLtDestroy");
  find(f_.matmul, "cublasLtMatmul");
  find(f_.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(f_.desc_create, "cublasLtMatmulDescCreate");
  find(f_.desc_destroy, "cublasLtMatmulDescDestroy");
  find(f_.desc_set, "cublasLtMatmulDescSetAttribute");
  find(f_.layout_create, "cublasLtMatrixLayoutCreate");
  find(f_.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(f_.preference_create, "cublasLtMatmulPreferenceCreate");
  find(f_.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(f_.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  check(f_.create(&handle_), "start");
}

// The largest power of two up to 16 that divides an address.
unsigned alignment_of(const void* address) {
  const auto low = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(address) & 15U);
  return low == 0 ? 16U : low & (~low + 1U);
}

// Our row-major C = op(A) · op(B) is, read by columns as the library does, Cᵀ = op(B)ᵀ · op(A)ᵀ: the right
// operand comes first.
Plan CublasLt::make_plan(const Gemm& call, const Key& key) {
  Plan plan;
  const auto rows = [](const Tensor& t) { return static_cast<std::uint64_t>(t.rows()); };
  const auto cols = [](const Tensor& t) { return static_cast<std::uint64_t>(t.cols()); };
  const cublasOperation_t first = call.role == GemmRole::kForward ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = call.role == GemmRole::kWeightGradient ? CUBLAS_OP_T : CUBLAS_OP_N;
  f_.desc_create(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  f_.desc_set(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first));
  f_.desc_set(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second));
  f_.layout_create(&plan.left, type_of(call.b.dtype), cols(call.b), rows(call.b), call.b.cols());
  f_.layout_create(&plan.right, type_of(call.a.dtype), cols(call.a), rows(call.a), call.a.cols());
  f_.layout_create(&plan.result, type_of(call.c.dtype), cols(call.c), rows(call.c), call.c.cols());
  cublasLtMatmulPreference_t preference = nullptr;
  f_.preference_create(&preference);
  const auto bytes = static_cast<std::uint64_t>(call.workspace.bytes());
  f_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes));
  // Parts of a sum are added in fp32, never in the result's type.
  const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  f_.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions));
  const std::uint32_t a = std::get<8>(key), b = std::get<7>(key), c = std::get<9>(key);
  f_.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof(a));
  f_.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof(b));
  f_.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof(c));
  f_.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof(c));
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status = f_.heuristic(handle_, plan.product, plan.left, plan.right, plan.result,
                                             plan.result, preference, 1, &result, &count);
  f_.preference_destroy(preference);
  plan.found = status == CUBLAS_STATUS_SUCCESS && count > 0;
  plan.algorithm = result.algo;
  return plan;
}

bool CublasLt::multiply(Context& context, const Gemm& call) {
  // Mixed operands are as exact as fp32, which the library's mixed products are not. Empty ones it refuses.
  if (call.a.dtype != call.b.dtype) return false;
  // And it rounds a bf16 result twice when it adds to one.
  if (call.accumulate && call.c.dtype == DType::kBF16) return false;
  if (call.a.elements() == 0 || call.b.elements() == 0 || call.c.elements() == 0) return false;
  const Key key{call.role,
                call.a.dtype,
                call.c.dtype,
                call.accumulate,
                call.c.rows(),
                call.c.cols(),
                call.a.elements(),
                alignment_of(call.a.data),
                alignment_of(call.b.data),
                alignment_of(call.c.data)};
  auto at = plans_.find(key);
  if (at == plans_.end()) at = plans_.emplace(key, make_plan(call, key)).first;
  const Plan& plan = at->second;
  if (!plan.found) return false;
  const float alpha = 1, beta = call.accumulate ? 1.0F : 0.0F;
  check(f_.matmul(handle_, plan.product, &alpha, call.b.data, plan.left, call.a.data, plan.right, &beta,
                  call.c.data, plan.result, call.c.data, plan.result, &plan.algorithm, call.workspace.data,
                  static_cast<std::size_t>(call.workspace.bytes()), context.stream()),
        "multiply");
  return true;
}

}  // namespace

std::int64_t library_workspace(Context&, const Gemm&) { return kWorkspaceBytes; }

bool multiply_by_library(Context& context, const Gemm& call) {
  return context.library<CublasLt>().multiply(context, call);
}

}  // namespace primus::turbo::cuda

#else

namespace primus::turbo::PRIMUS_GPU {

std::int64_t library_workspace(gpu::PRIMUS_GPU::Context&, const Gemm&) { return 0; }
bool multiply_by_library(gpu::PRIMUS_GPU::Context&, const Gemm&) { return false; }

}  // namespace primus::turbo::PRIMUS_GPU

#endif
