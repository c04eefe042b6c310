// Our own declarations for the part of hipBLASLt's C interface that products need. The installed library is
// opened at the first product that needs it, so a build needs no AMD headers. The declarations match
// hipBLASLt 1.1 (ROCm 7.1); scripts/check-amd-abi.sh compares them with AMD's headers if they are installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace primus::turbo::hipblaslt {

using Handle = void*;
using MatmulDesc = struct MatmulDescOpaque*;
using MatrixLayout = struct MatrixLayoutOpaque*;
using Preference = struct PreferenceOpaque*;
using Stream = void*;  // a hipStream_t

enum class Status : int { kSuccess = 0 };
enum class DataType : int {
  kF32 = 0,
  kF16 = 2,
  kBF16 = 14,
  kE4M3 = 28,  // the two formats of OCP (gfx950), and those of gfx942 (turbo/fp8_linear/fp8_fnuz.h)
  kE5M2 = 29,
  kE4M3Fnuz = 1000,
  kE5M2Fnuz = 1001,
};
enum class ComputeType : int { k32F = 2 };
enum class Operation : std::int32_t { kPlain = 111, kTransposed = 112 };
// The values of transpositions are int32. The values of scales are pointers to one float on the device.
enum class DescAttribute : int { kTransA = 0, kTransB = 1, kAScale = 5, kBScale = 6 };
enum class PreferenceAttribute : int { kMaxWorkspaceBytes = 1 };  // the value is uint64

// An algorithm in the library's own format, valid only for the same version of the library.
struct Algorithm {
  std::uint8_t data[16];
  std::size_t max_workspace_bytes;
};
struct HeuristicResult {
  Algorithm algo;
  std::size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

// The functions of the library. LtProducts expects these names, which are hipBLASLt's names without the
// prefix "hipblasLt". Matrices are column-major. The library is never closed. A handle belongs to the GPU
// that is current at its creation, and to one thread at a time.
struct Library {
  Status (*create)(Handle* handle);
  Status (*destroy)(Handle handle);
  Status (*get_version)(Handle handle, int* version);
  Status (*desc_create)(MatmulDesc* desc, ComputeType compute, DataType scale);
  Status (*desc_destroy)(MatmulDesc desc);
  Status (*desc_set)(MatmulDesc desc, DescAttribute name, const void* value, std::size_t bytes);
  Status (*layout_create)(MatrixLayout* layout, DataType type, std::uint64_t rows, std::uint64_t cols,
                          std::int64_t leading);
  Status (*layout_destroy)(MatrixLayout layout);
  Status (*preference_create)(Preference* preference);
  Status (*preference_destroy)(Preference preference);
  Status (*preference_set)(Preference preference, PreferenceAttribute name, const void* value,
                           std::size_t bytes);
  Status (*heuristic)(Handle handle, MatmulDesc desc, MatrixLayout a, MatrixLayout b, MatrixLayout c,
                      MatrixLayout d, Preference preference, int room, HeuristicResult* results, int* count);
  // d = *alpha * op(a) * op(b) + *beta * c; alpha and beta are on the host.
  Status (*matmul)(Handle handle, MatmulDesc desc, const void* alpha, const void* a, MatrixLayout a_layout,
                   const void* b, MatrixLayout b_layout, const void* beta, const void* c,
                   MatrixLayout c_layout, void* d, MatrixLayout d_layout, const Algorithm* algorithm,
                   void* workspace, std::size_t workspace_bytes, Stream stream);
};

// The oldest supported version is 0.7 (ROCm 6.1). Earlier versions use different numbers for the types.
inline constexpr int kOldestVersion = 700;
// Returns "1.1.0" for 100100.
std::string version_text(int version);

inline constexpr const char* kFiles[] = {"libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so",
                                         "/opt/rocm/lib/libhipblaslt.so.1",
                                         "/opt/rocm/lib/libhipblaslt.so.0"};

// Opens the library. Returns null if no usable library is found; `why` then says what was found instead and
// what to do.
std::shared_ptr<const Library> open_library(std::span<const char* const> files, std::string& why);

// Returns the library's version (100100 is 1.1.0), or 0 if the library does not report it.
int version_of(const Library& library, Handle handle);

// Creates a handle for the current GPU. Returns null, and sets `why`, if the library does not start or is too
// old.
Handle start(const Library& library, std::string& why);

}  // namespace primus::turbo::hipblaslt
