// Compares our declarations of NCCL's interface with NVIDIA's header, where it is installed.
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "base/error.h"
#include "comm/nccl/library.h"

namespace primus::comm::nccl {
namespace {

template <class Ours, class Theirs>
constexpr bool equal(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}

static_assert(equal(Result::kSuccess, ncclSuccess) &&
              equal(Result::kUnhandledDeviceError, ncclUnhandledCudaError));
static_assert(equal(Result::kSystemError, ncclSystemError) &&
              equal(Result::kInternalError, ncclInternalError));
static_assert(equal(Result::kInvalidArgument, ncclInvalidArgument));
static_assert(equal(Result::kInvalidUsage, ncclInvalidUsage) && equal(Result::kRemoteError, ncclRemoteError));
static_assert(equal(Result::kInProgress, ncclInProgress));
static_assert(equal(DataType::kU8, ncclUint8) && equal(DataType::kI32, ncclInt32));
static_assert(equal(DataType::kI64, ncclInt64) && equal(DataType::kF32, ncclFloat32));
static_assert(equal(DataType::kF64, ncclFloat64));
static_assert(equal(DataType::kBF16, ncclBfloat16) && equal(DataType::kF16, ncclFloat16));
static_assert(equal(Operation::kSum, ncclSum) && equal(Operation::kMax, ncclMax));
static_assert(equal(Operation::kMean, ncclAvg));
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && sizeof(Result) == sizeof(ncclResult_t));
static_assert(sizeof(DataType) == sizeof(ncclDataType_t) && sizeof(Operation) == sizeof(ncclRedOp_t));
// Later versions of NCCL only append members to the struct.
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));
static_assert(offsetof(Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(Config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(Config, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(Config, split_share) == offsetof(ncclConfig_t, splitShare));

// Returns whether one of our types matches one of NCCL's: both are pointers, or both are structs or numbers
// of equal size.
template <class Ours, class Theirs>
constexpr bool stands_for() {
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  } else {
    return sizeof(Ours) == sizeof(Theirs) && std::is_class_v<Ours> == std::is_class_v<Theirs>;
  }
}
template <class Ours, class Theirs>
struct SameCall : std::false_type {};
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B)) struct SameCall<R (*)(A...), S (*)(B...)>
    : std::bool_constant<stands_for<R, S>() && (stands_for<A, B>() && ...)> {
};

TEST(NcclHeader, FunctionTypesAgree) {
  EXPECT_TRUE((SameCall<decltype(Library::get_version), decltype(&ncclGetVersion)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::error_string), decltype(&ncclGetErrorString)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::last_error), decltype(&ncclGetLastError)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::get_unique_id), decltype(&ncclGetUniqueId)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::init_rank_config), decltype(&ncclCommInitRankConfig)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::finalize), decltype(&ncclCommFinalize)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::destroy), decltype(&ncclCommDestroy)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::abort), decltype(&ncclCommAbort)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::async_error), decltype(&ncclCommGetAsyncError)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::group_start), decltype(&ncclGroupStart)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::group_end), decltype(&ncclGroupEnd)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::all_reduce), decltype(&ncclAllReduce)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::reduce_scatter), decltype(&ncclReduceScatter)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::all_gather), decltype(&ncclAllGather)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::broadcast), decltype(&ncclBroadcast)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::send), decltype(&ncclSend)>::value));
  EXPECT_TRUE((SameCall<decltype(Library::receive), decltype(&ncclRecv)>::value));
}

// The installed library exports every NCCL function that Primus loads.
TEST(NcclHeader, TheInstalledLibraryOpens) {
  const char* const files[] = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2", nullptr};
  DeviceCollectives collectives{};
  collectives.library = "NCCL";
  collectives.file_names = files;
  collectives.installation = "NCCL";
  try {
    EXPECT_GE(open_library(collectives)->version, 21800);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
}

}  // namespace
}  // namespace primus::comm::nccl
