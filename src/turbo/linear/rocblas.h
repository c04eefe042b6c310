// Our own declarations for the part of rocBLAS's C interface that is needed for products that hipBLASLt does
// not accept. The installed library is opened at run time, so a build needs no AMD headers. rocBLAS chooses
// its kernels itself. The declarations match rocBLAS 4.4 (ROCm 6.4); scripts/check-amd-abi.sh compares them
// with AMD's header if it is installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace primus::turbo::rocblas {

using Handle = struct HandleOpaque*;
using Stream = void*;  // a hipStream_t

enum class Status : int {
  kSuccess = 0,
  kNotImplemented = 2,
  kInvalidSize = 4,
  kMemoryError = 5,
  kPerformanceDegraded = 7,
  kInvalidValue = 11,
  kExcludedFromBuild = 14,
  kArchMismatch = 15,
};
enum class Operation : int { kPlain = 111, kTransposed = 112 };
enum class DataType : int { kF16 = 150, kF32 = 151, kBF16 = 168 };
enum class AtomicsMode : int { kNotAllowed = 0 };
enum class GemmAlgorithm : int { kStandard = 0 };

// The functions of the library, with names without the prefix "rocblas_". Matrices are column-major. The
// library is never closed. A handle belongs to the GPU that is current at its creation, and to one thread at
// a time.
struct Library {
  Status (*create_handle)(Handle* handle);
  Status (*destroy_handle)(Handle handle);
  Status (*set_stream)(Handle handle, Stream stream);
  Status (*set_workspace)(Handle handle, void* memory, std::size_t bytes);
  Status (*set_atomics_mode)(Handle handle, AtomicsMode mode);
  // d = *alpha * op(a) * op(b) + *beta * c, with op(a) [m, k]; alpha and beta are on the host.
  Status (*gemm_ex)(Handle handle, Operation trans_a, Operation trans_b, std::int32_t m, std::int32_t n,
                    std::int32_t k, const void* alpha, const void* a, DataType a_type, std::int32_t a_leading,
                    const void* b, DataType b_type, std::int32_t b_leading, const void* beta, const void* c,
                    DataType c_type, std::int32_t c_leading, void* d, DataType d_type, std::int32_t d_leading,
                    DataType compute_type, GemmAlgorithm algorithm, std::int32_t solution_index,
                    std::uint32_t flags);
};

inline constexpr const char* kFiles[] = {"librocblas.so.5",
                                         "librocblas.so.4",
                                         "librocblas.so.3",
                                         "librocblas.so.0",
                                         "librocblas.so",
                                         "/opt/rocm/lib/librocblas.so.5",
                                         "/opt/rocm/lib/librocblas.so.4"};

// Opens the library. Returns null if no usable library is found; `why` then says what was found instead and
// what to do.
std::shared_ptr<const Library> open_library(std::span<const char* const> files, std::string& why);

}  // namespace primus::turbo::rocblas
