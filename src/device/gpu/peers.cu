// Lets GPUs of one host read each other's memory, with the inter-process handles of the runtime, and with
// stream operations on flags that use no multiprocessor.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "device/gpu/copy_rows.h"
#include "device/gpu/gpu_device.h"
#include "device/gpu/runtime.h"

#if !defined(__HIP__)
#include <cuda.h>
#endif

namespace primus::gpu::PRIMUS_GPU {
namespace {

using IpcHandle = PRIMUS_GPU_CALL(IpcMemHandle_t);
static_assert(sizeof(IpcHandle) == sizeof(PeerHandle));

#if defined(__HIP__)

constexpr bool kUsual = false;  // copy engines are not tested on AMD GPUs

void range_of(const void* address, void*& base, std::uint64_t& id) {
  std::size_t bytes = 0;
  void* const asked = const_cast<void*>(address);
  check(hipMemGetAddressRange(&base, &bytes, asked), "find an allocation");
  unsigned int number = 0;
  check(hipPointerGetAttribute(&number, HIP_POINTER_ATTRIBUTE_BUFFER_ID, asked), "number an allocation");
  id = number;
}

void set_flag(Stream& stream, void* flag, std::uint32_t value) {
  check(hipStreamWriteValue32(static_cast<StreamHandle>(collectives().stream_handle(stream)), flag, value, 0),
        "set a flag");
}

void wait_flag(Stream& stream, void* flag, std::uint32_t value) {
  check(hipStreamWaitValue32(static_cast<StreamHandle>(collectives().stream_handle(stream)), flag, value,
                             hipStreamWaitValueGte),
        "wait for a flag");
}

#else

constexpr bool kUsual = true;

// Functions of the driver that the runtime does not have.
struct Driver {
  decltype(&cuMemGetAddressRange) address_range;
  decltype(&cuPointerGetAttribute) attribute;
  decltype(&cuStreamWriteValue32) write;
  decltype(&cuStreamWaitValue32) wait;
  decltype(&cuGetErrorName) error_name;
};

template <class Function>
void find(Function& function, const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result),
        "look for a function of the driver");
  if (!found || result != cudaDriverEntryPointSuccess) {
    throw Error(ErrorKind::kDependency, std::string("cuda: the driver has no ") + name,
                "install a driver for CUDA 12 or newer");
  }
  function = reinterpret_cast<Function>(found);
}

const Driver& driver() {
  static const Driver found = [] {
    Driver d{};
    find(d.address_range, "cuMemGetAddressRange");
    find(d.attribute, "cuPointerGetAttribute");
    find(d.write, "cuStreamWriteValue32");
    find(d.wait, "cuStreamWaitValue32");
    find(d.error_name, "cuGetErrorName");
    return d;
  }();
  return found;
}

void check_driver(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) [[likely]]
    return;
  const char* name = "an unknown error";
  (void)driver().error_name(result, &name);
  throw Error(ErrorKind::kIo, std::string("cuda: cannot ") + what + ": " + name);
}

CUdeviceptr pointer(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

void range_of(const void* address, void*& base, std::uint64_t& id) {
  CUdeviceptr begin = 0;
  std::size_t bytes = 0;
  check_driver(driver().address_range(&begin, &bytes, pointer(address)), "find an allocation");
  base = reinterpret_cast<void*>(begin);
  unsigned long long number = 0;
  check_driver(driver().attribute(&number, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer(address)),
               "number an allocation");
  id = number;
}

CUstream handle_of(Stream& stream) { return static_cast<CUstream>(collectives().stream_handle(stream)); }

void set_flag(Stream& stream, void* flag, std::uint32_t value) {
  check_driver(driver().write(handle_of(stream), pointer(flag), value, CU_STREAM_WRITE_VALUE_DEFAULT),
               "set a flag");
}

void wait_flag(Stream& stream, void* flag, std::uint32_t value) {
  check_driver(driver().wait(handle_of(stream), pointer(flag), value, CU_STREAM_WAIT_VALUE_GEQ),
               "wait for a flag");
}

#endif

void choose(int ordinal) { check(PRIMUS_GPU_CALL(SetDevice)(ordinal), "choose a GPU"); }

PeerHandle share(int ordinal, const void* address, std::int64_t& offset) {
  choose(ordinal);
  void* base = nullptr;
  std::uint64_t id = 0;
  range_of(address, base, id);
  offset = static_cast<const std::byte*>(address) - static_cast<const std::byte*>(base);
  // Requesting a handle takes longer than a copy, so handles are cached. The key includes the id of the
  // allocation, because another allocation may later have the same address.
  static std::mutex mutex;
  static std::map<std::pair<void*, std::uint64_t>, PeerHandle> known;
  const std::lock_guard lock(mutex);
  const auto [at, fresh] = known.try_emplace({base, id});
  if (fresh) {
    IpcHandle handle;
    const Status status = PRIMUS_GPU_CALL(IpcGetMemHandle)(&handle, base);
    if (status != PRIMUS_GPU_CALL(Success)) known.erase(at);
    check(status, "share device memory with other processes");
    std::memcpy(at->second.bytes.data(), &handle, sizeof(handle));
  }
  return at->second;
}

// Memory of other processes that this process has mapped. Two groups of ranks may include the same process.
// Both groups use the same mapping, because the driver may refuse to map memory twice.
struct Mapped {
  void* address = nullptr;
  int users = 0;
};
using Mappings = std::map<std::pair<int, std::array<unsigned char, sizeof(IpcHandle)>>, Mapped>;

std::mutex& mappings_mutex() {
  static std::mutex mutex;
  return mutex;
}

Mappings& mappings() {
  static Mappings all;
  return all;
}

void* open(int ordinal, const PeerHandle& shared) {
  choose(ordinal);
  Mappings::key_type key{ordinal, {}};
  std::memcpy(key.second.data(), shared.bytes.data(), sizeof(IpcHandle));
  const std::lock_guard lock(mappings_mutex());
  const auto [at, fresh] = mappings().try_emplace(key);
  if (fresh) {
    IpcHandle handle;
    std::memcpy(&handle, shared.bytes.data(), sizeof(handle));
    const Status status = PRIMUS_GPU_CALL(IpcOpenMemHandle)(&at->second.address, handle,
                                                            PRIMUS_GPU_CALL(IpcMemLazyEnablePeerAccess));
    if (status != PRIMUS_GPU_CALL(Success)) mappings().erase(at);
    check(status, "open the memory of another GPU");
  }
  ++at->second.users;
  return at->second.address;
}

void close(int ordinal, void* opened) noexcept {
  (void)PRIMUS_GPU_CALL(SetDevice)(ordinal);
  const std::lock_guard lock(mappings_mutex());
  const auto at = std::find_if(mappings().begin(), mappings().end(), [&](const auto& mapping) {
    return mapping.first.first == ordinal && mapping.second.address == opened;
  });
  if (at == mappings().end() || --at->second.users > 0) return;
  mappings().erase(at);
  (void)PRIMUS_GPU_CALL(IpcCloseMemHandle)(opened);
}

void* map_flags(int ordinal, void* host, std::int64_t bytes) {
  choose(ordinal);
  check(PRIMUS_GPU_CALL(HostRegister)(host, static_cast<std::size_t>(bytes),
                                      PRIMUS_GPU_CALL(HostRegisterMapped)),
        "map shared memory of the host");
  void* address = nullptr;
  const Status status = PRIMUS_GPU_CALL(HostGetDevicePointer)(&address, host, 0);
  if (status != PRIMUS_GPU_CALL(Success)) (void)PRIMUS_GPU_CALL(HostUnregister)(host);
  check(status, "map shared memory of the host");
  return address;
}

void unmap_flags(int ordinal, void* host) noexcept {
  (void)PRIMUS_GPU_CALL(SetDevice)(ordinal);
  (void)PRIMUS_GPU_CALL(HostUnregister)(host);
}

void copy_rows(Stream& stream, const RowCopies& copies) {
  const auto handle = static_cast<StreamHandle>(collectives().stream_handle(stream));
  each_copy_rows(copies, [&](int blocks, const CopyRows& kernel) {
    internal::enter<CopyRows><<<static_cast<unsigned>(blocks), CopyRows::kThreads, 0, handle>>>(kernel);
    check(PRIMUS_GPU_CALL(GetLastError)(), "copy rows to other GPUs");
  });
}

constexpr DevicePeers kPeers{.share = share,
                             .open = open,
                             .close = close,
                             .map_flags = map_flags,
                             .unmap_flags = unmap_flags,
                             .set_flag = set_flag,
                             .wait_flag = wait_flag,
                             .copy_rows = copy_rows,
                             .usual = kUsual};

}  // namespace

const DevicePeers& peers() { return kPeers; }

}  // namespace primus::gpu::PRIMUS_GPU
