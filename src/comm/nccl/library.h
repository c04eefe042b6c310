// Declarations of the C interface of NCCL and RCCL. The library that is installed on the machine is loaded
// for the first communicator of several GPUs. Both libraries export the same functions and keep this
// interface stable within major version 2. tests/comm compares these declarations with NVIDIA's header if
// that is installed.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "device/collectives.h"

namespace primus::comm::nccl {

using Comm = struct ncclComm*;
using StreamHandle = void*;

// Identifies a group that is about to be made. One rank creates it and sends it to all others.
struct UniqueId {
  std::array<char, 128> bytes;
};

enum class Result : int {
  kSuccess = 0,
  kUnhandledDeviceError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
enum class DataType : int { kU8 = 1, kI32 = 2, kI64 = 4, kF16 = 6, kF32 = 7, kF64 = 8, kBF16 = 9 };
enum class Operation : int { kSum = 0, kMax = 2, kMean = 4 };

// ncclConfig_t of version 2.18, the oldest supported version. Newer libraries read `size` and `version` and
// use defaults for fields added later.
struct Config {
  static constexpr int kDefault = INT_MIN;
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kDefault;
  int cga_cluster_size = kDefault;
  int min_ctas = kDefault;
  int max_ctas = kDefault;
  const char* net_name = nullptr;
  int split_share = kDefault;
};

DataType type_of(DType dtype);
Operation operation_of(Reduction reduction);

// The library's functions under Primus names. The library is never unloaded. The functions are as thread-safe
// as the library makes them.
struct Library {
  std::string name;  // "NCCL"
  int version = 0;   // for example 22809 for 2.28.9
  std::string version_text;

  Result (*get_version)(int* version);
  const char* (*error_string)(Result result);
  const char* (*last_error)(Comm comm);
  Result (*get_unique_id)(UniqueId* id);
  Result (*init_rank_config)(Comm* comm, int ranks, UniqueId id, int rank, Config* config);
  Result (*finalize)(Comm comm);
  Result (*destroy)(Comm comm);
  Result (*abort)(Comm comm);
  Result (*async_error)(Comm comm, Result* error);
  Result (*group_start)();
  Result (*group_end)();
  Result (*all_reduce)(const void* in, void* out, std::size_t count, DataType type, Operation operation,
                       Comm comm, StreamHandle stream);
  Result (*reduce_scatter)(const void* in, void* out, std::size_t out_count, DataType type,
                           Operation operation, Comm comm, StreamHandle stream);
  Result (*all_gather)(const void* in, void* out, std::size_t in_count, DataType type, Comm comm,
                       StreamHandle stream);
  Result (*broadcast)(const void* in, void* out, std::size_t count, DataType type, int root, Comm comm,
                      StreamHandle stream);
  Result (*send)(const void* data, std::size_t count, DataType type, int peer, Comm comm,
                 StreamHandle stream);
  Result (*receive)(void* data, std::size_t count, DataType type, int peer, Comm comm, StreamHandle stream);
};

// Opens the library for these devices. Throws Error(kDependency) naming the file if it is missing, lacks a
// function, or is older than 2.18.
std::shared_ptr<const Library> open_library(const DeviceCollectives& collectives);

// Converts a number from get_version() to "2.28.9".
std::string version_text(int version);

}  // namespace primus::comm::nccl
