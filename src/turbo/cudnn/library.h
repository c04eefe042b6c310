// Our own declarations for a part of cuDNN's graph interface ("backend API"). The first operator that needs
// the library opens it at run time. The build needs no NVIDIA header. If the header is installed,
// tests/turbo/cudnn compares these declarations with the header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace primus::turbo::cudnn {

using Handle = struct cudnnContext*;
using Descriptor = void*;

enum class Status : int { kSuccess = 0 };

enum class DescriptorType : int {
  kPointwise = 0,
  kEngine = 2,
  kEngineConfig = 3,
  kEngineHeuristics = 4,
  kExecutionPlan = 5,
  kOperationPointwise = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kOperationMatmul = 19,
  kReduction = 21,
  kOperationReduction = 22,
  kOperationReshape = 31,
};

enum class Attribute : int {
  kPointwiseMode = 0,
  kPointwiseMathPrecision = 1,
  kPointwiseAxis = 9,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kEngineConfigEngine = 300,
  kPlanHandle = 400,
  kPlanEngineConfig = 401,
  kPlanWorkspaceSize = 402,
  kOperationPointwiseDescriptor = 750,
  kOperationPointwiseX = 751,
  kOperationPointwiseB = 752,
  kOperationPointwiseY = 753,
  kOperationPointwiseT = 758,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorByteAlignment = 900,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorUniqueId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kTensorRaggedOffset = 913,
  kVariantPackUniqueIds = 1000,
  kVariantPackPointers = 1001,
  kVariantPackWorkspace = 1003,
  kEngineGlobalIndex = 1301,
  kEngineNumericalNote = 1303,
  kMatmulComputeType = 1500,
  kMatmulPaddingValue = 1503,
  kOperationMatmulA = 1520,
  kOperationMatmulB = 1521,
  kOperationMatmulC = 1522,
  kOperationMatmulDescriptor = 1523,
  kOperationMatmulRows = 1525,   // number of valid rows of the result, in device memory
  kOperationMatmulCols = 1526,   // number of valid columns of the result
  kOperationMatmulDepth = 1527,  // number of valid products per sum
  kReductionOperator = 1600,
  kReductionComputeType = 1601,
  kOperationReductionX = 1610,
  kOperationReductionY = 1611,
  kOperationReductionDescriptor = 1612,
  kOperationReshapeX = 2200,
  kOperationReshapeY = 2201,
};

enum class AttributeType : int {
  kHandle = 0,
  kDataType = 1,
  kBool = 2,
  kInt64 = 3,
  kDouble = 5,
  kVoidPointer = 6,
  kHeuristicsMode = 8,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kReductionOperator = 18,
};

enum class DataType : int { kF32 = 0, kF16 = 2, kI32 = 4, kBF16 = 9, kBool = 11 };
enum class HeuristicsMode : int { kA = 3 };
enum class NumericalNote : int { kNonDeterministic = 4 };
enum class ReductionOperator : int { kAdd = 0, kMax = 3 };
enum class PointwiseMode : int {
  kAdd = 0,
  kMultiply = 1,
  kMax = 3,
  kDivide = 6,
  kSubtract = 9,
  kExp = 13,
  kLog = 15,
  kIdentity = 21,
  kGreater = 302,
  kGreaterOrEqual = 303,
  kLess = 304,
  kAnd = 400,
  kIndex = 501,   // index of an element along an axis
  kSelect = 601,  // t ? x : b
};

// The functions of the library, with the names that cuDNN gives them. The library is never closed.
// Thread-safety is that of cuDNN: only one thread at a time may use a handle or a descriptor.
struct Library {
  std::size_t version = 0;   // 91900 is 9.19.0
  std::string version_text;  // "9.19.0"

  std::size_t (*get_version)();
  void (*last_error)(char* message, std::size_t bytes);
  Status (*create)(Handle* handle);
  Status (*destroy)(Handle handle);
  Status (*set_stream)(Handle handle, void* stream);
  Status (*create_descriptor)(DescriptorType type, Descriptor* descriptor);
  Status (*destroy_descriptor)(Descriptor descriptor);
  Status (*set_attribute)(Descriptor descriptor, Attribute name, AttributeType type, std::int64_t count,
                          const void* elements);
  Status (*get_attribute)(Descriptor descriptor, Attribute name, AttributeType type, std::int64_t room,
                          std::int64_t* count, void* elements);
  Status (*finalize)(Descriptor descriptor);
  Status (*execute)(Handle handle, Descriptor plan, Descriptor variant_pack);
};

// The oldest supported version. Older versions have no attention sinks, or have known bugs that produce wrong
// results.
inline constexpr std::size_t kOldestVersion = 91300;

// Opens the library. If no usable library is found, returns null and sets `why` to the reason and the next
// step.
std::shared_ptr<const Library> open_library(std::string& why);
// Opens the library from one file. For tests.
std::shared_ptr<const Library> open_library(const char* file, std::string& why);

// Formats a version: 91900 becomes "9.19.0".
std::string version_text(std::size_t version);

}  // namespace primus::turbo::cudnn
