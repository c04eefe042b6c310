#include "comm/nccl/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <stdexcept>

#include "base/error.h"

namespace primus::comm::nccl {
namespace {

constexpr int kOldest = 21800;  // the first version with non-blocking, abortable communicators

}  // namespace

DataType type_of(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return DataType::kU8;
    case DType::kI32:
      return DataType::kI32;
    case DType::kI64:
      return DataType::kI64;
    case DType::kF32:
      return DataType::kF32;
    case DType::kF64:
      return DataType::kF64;
    case DType::kBF16:
      return DataType::kBF16;
    case DType::kF16:
      return DataType::kF16;
    default:
      throw std::logic_error("nccl: a type that cannot be communicated");
  }
}

Operation operation_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return Operation::kSum;
    case Reduction::kMax:
      return Operation::kMax;
    case Reduction::kMean:
      return Operation::kMean;
  }
  throw std::logic_error("nccl: an unknown reduction");
}

std::string version_text(int version) {
  // Before 2.9, version numbers had one digit less for the minor version.
  const int unit = version >= 10000 ? 10000 : 1000;
  return fmt::format("{}.{}.{}", version / unit, version % unit / 100, version % 100);
}

std::shared_ptr<const Library> open_library(const DeviceCollectives& collectives) {
  const std::string next_step =
      fmt::format("install {} ({} 2.18 or newer), or add the folder of {} to LD_LIBRARY_PATH",
                  collectives.installation, collectives.library, collectives.file_names[0]);
  void* handle = nullptr;
  std::string file, tried;
  for (const char* const* name = collectives.file_names; *name && !handle; ++name) {
    file = *name;
    handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle) break;
    const char* const reason = dlerror();
    tried += (tried.empty() ? "" : "; ") + std::string(reason ? reason : file);
  }
  if (!handle) {
    throw Error(ErrorKind::kDependency,
                fmt::format("cannot load {}, which ranks need to communicate between GPUs: {}",
                            collectives.library, tried),
                next_step);
  }
  auto library = std::make_shared<Library>();
  library->name = collectives.library;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function) return;
    const std::string version = library->version_text.empty() ? "" : " " + library->version_text;
    throw Error(ErrorKind::kDependency,
                fmt::format("{} cannot be used for {}{}: it has no function {}", file, collectives.library,
                            version, name),
                next_step);
  };
  // Check the version first: if the library is old, its version gives a better error than a missing function.
  find(library->get_version, "ncclGetVersion");
  if (library->get_version(&library->version) != Result::kSuccess) {
    throw Error(ErrorKind::kDependency, file + " does not report its version", next_step);
  }
  library->version_text = version_text(library->version);
  if (library->version < kOldest) {
    throw Error(ErrorKind::kDependency,
                fmt::format("{} is {} {}, which is too old: 2.18 is the minimum", file, collectives.library,
                            library->version_text),
                next_step);
  }
  find(library->error_string, "ncclGetErrorString");
  find(library->last_error, "ncclGetLastError");
  find(library->get_unique_id, "ncclGetUniqueId");
  find(library->init_rank_config, "ncclCommInitRankConfig");
  find(library->finalize, "ncclCommFinalize");
  find(library->destroy, "ncclCommDestroy");
  find(library->abort, "ncclCommAbort");
  find(library->async_error, "ncclCommGetAsyncError");
  find(library->group_start, "ncclGroupStart");
  find(library->group_end, "ncclGroupEnd");
  find(library->all_reduce, "ncclAllReduce");
  find(library->reduce_scatter, "ncclReduceScatter");
  find(library->all_gather, "ncclAllGather");
  find(library->broadcast, "ncclBroadcast");
  find(library->send, "ncclSend");
  find(library->receive, "ncclRecv");
  return library;
}

}  // namespace primus::comm::nccl
