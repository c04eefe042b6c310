// Compares our declarations of the hipBLASLt and rocBLAS interfaces with AMD's headers, at compile time.
// scripts/check-amd-abi.sh compiles this file if the headers are installed.
#include <hipblaslt/hipblaslt.h>
#include <rocblas/rocblas.h>

#include <cstddef>
#include <type_traits>

#include "turbo/linear/hipblaslt.h"
#include "turbo/linear/rocblas.h"

// Some versions of rocBLAS's header define a macro with the name of this function.
#undef rocblas_gemm_ex

namespace primus::turbo {
namespace {

// True if two parameter types are passed in the same way: the two types have equal sizes, and agree in
// whether they are pointers or floating-point types.
template <class Ours, class Theirs>
constexpr bool kSameArgument =
    std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
    sizeof(Ours) == sizeof(Theirs) && std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;

template <class Ours, class Theirs>
struct SameCall : std::false_type {};
template <class Result, class... Ours, class TheirResult, class... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct SameCall<Result (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<kSameArgument<Result, TheirResult> && (kSameArgument<Ours, Theirs> && ...)> {
};

#define SAME_CALL(library, ours, theirs) \
  static_assert(SameCall<decltype(library::Library::ours), decltype(&theirs)>::value, #theirs)
#define SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs), #theirs)
#define SAME_FIELD(ours, our_field, theirs, their_field)                                                  \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) &&                             \
                    sizeof(std::declval<ours>().our_field) == sizeof(std::declval<theirs>().their_field), \
                #their_field)

// rocBLAS marks rocblas_set_atomics_mode as deprecated, because the mode that we set will become the default.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

SAME_CALL(hipblaslt, create, hipblasLtCreate);
SAME_CALL(hipblaslt, destroy, hipblasLtDestroy);
SAME_CALL(hipblaslt, get_version, hipblasLtGetVersion);
SAME_CALL(hipblaslt, desc_create, hipblasLtMatmulDescCreate);
SAME_CALL(hipblaslt, desc_destroy, hipblasLtMatmulDescDestroy);
SAME_CALL(hipblaslt, desc_set, hipblasLtMatmulDescSetAttribute);
SAME_CALL(hipblaslt, layout_create, hipblasLtMatrixLayoutCreate);
SAME_CALL(hipblaslt, layout_destroy, hipblasLtMatrixLayoutDestroy);
SAME_CALL(hipblaslt, preference_create, hipblasLtMatmulPreferenceCreate);
SAME_CALL(hipblaslt, preference_destroy, hipblasLtMatmulPreferenceDestroy);
SAME_CALL(hipblaslt, preference_set, hipblasLtMatmulPreferenceSetAttribute);
SAME_CALL(hipblaslt, heuristic, hipblasLtMatmulAlgoGetHeuristic);
SAME_CALL(hipblaslt, matmul, hipblasLtMatmul);

SAME(hipblaslt::Status::kSuccess, HIPBLAS_STATUS_SUCCESS);
SAME(hipblaslt::DataType::kF32, HIP_R_32F);
SAME(hipblaslt::DataType::kF16, HIP_R_16F);
SAME(hipblaslt::DataType::kBF16, HIP_R_16BF);
SAME(hipblaslt::DataType::kE4M3, HIP_R_8F_E4M3);
SAME(hipblaslt::DataType::kE5M2, HIP_R_8F_E5M2);
SAME(hipblaslt::DataType::kE4M3Fnuz, HIP_R_8F_E4M3_FNUZ);
SAME(hipblaslt::DataType::kE5M2Fnuz, HIP_R_8F_E5M2_FNUZ);
SAME(hipblaslt::DescAttribute::kAScale, HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER);
SAME(hipblaslt::DescAttribute::kBScale, HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER);
SAME(hipblaslt::ComputeType::k32F, HIPBLAS_COMPUTE_32F);
SAME(hipblaslt::Operation::kPlain, HIPBLAS_OP_N);
SAME(hipblaslt::Operation::kTransposed, HIPBLAS_OP_T);
SAME(hipblaslt::DescAttribute::kTransA, HIPBLASLT_MATMUL_DESC_TRANSA);
SAME(hipblaslt::DescAttribute::kTransB, HIPBLASLT_MATMUL_DESC_TRANSB);
SAME(hipblaslt::PreferenceAttribute::kMaxWorkspaceBytes, HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);

static_assert(sizeof(hipblaslt::Algorithm) == sizeof(hipblasLtMatmulAlgo_t));
SAME_FIELD(hipblaslt::Algorithm, data, hipblasLtMatmulAlgo_t, data);
SAME_FIELD(hipblaslt::Algorithm, max_workspace_bytes, hipblasLtMatmulAlgo_t, max_workspace_bytes);
static_assert(sizeof(hipblaslt::HeuristicResult) == sizeof(hipblasLtMatmulHeuristicResult_t));
SAME_FIELD(hipblaslt::HeuristicResult, algo, hipblasLtMatmulHeuristicResult_t, algo);
SAME_FIELD(hipblaslt::HeuristicResult, workspace_bytes, hipblasLtMatmulHeuristicResult_t, workspaceSize);
SAME_FIELD(hipblaslt::HeuristicResult, state, hipblasLtMatmulHeuristicResult_t, state);
SAME_FIELD(hipblaslt::HeuristicResult, waves, hipblasLtMatmulHeuristicResult_t, wavesCount);
SAME_FIELD(hipblaslt::HeuristicResult, reserved, hipblasLtMatmulHeuristicResult_t, reserved);

SAME_CALL(rocblas, create_handle, rocblas_create_handle);
SAME_CALL(rocblas, destroy_handle, rocblas_destroy_handle);
SAME_CALL(rocblas, set_stream, rocblas_set_stream);
SAME_CALL(rocblas, set_workspace, rocblas_set_workspace);
SAME_CALL(rocblas, set_atomics_mode, rocblas_set_atomics_mode);
SAME_CALL(rocblas, gemm_ex, rocblas_gemm_ex);

SAME(rocblas::Status::kSuccess, rocblas_status_success);
SAME(rocblas::Status::kNotImplemented, rocblas_status_not_implemented);
SAME(rocblas::Status::kInvalidSize, rocblas_status_invalid_size);
SAME(rocblas::Status::kMemoryError, rocblas_status_memory_error);
SAME(rocblas::Status::kPerformanceDegraded, rocblas_status_perf_degraded);
SAME(rocblas::Status::kInvalidValue, rocblas_status_invalid_value);
SAME(rocblas::Status::kExcludedFromBuild, rocblas_status_excluded_from_build);
SAME(rocblas::Status::kArchMismatch, rocblas_status_arch_mismatch);
SAME(rocblas::Operation::kPlain, rocblas_operation_none);
SAME(rocblas::Operation::kTransposed, rocblas_operation_transpose);
SAME(rocblas::DataType::kF16, rocblas_datatype_f16_r);
SAME(rocblas::DataType::kF32, rocblas_datatype_f32_r);
SAME(rocblas::DataType::kBF16, rocblas_datatype_bf16_r);
SAME(rocblas::AtomicsMode::kNotAllowed, rocblas_atomics_not_allowed);
SAME(rocblas::GemmAlgorithm::kStandard, rocblas_gemm_algo_standard);
static_assert(static_cast<unsigned>(rocblas_gemm_flags_none) == 0, "we pass no flags");

}  // namespace
}  // namespace primus::turbo
