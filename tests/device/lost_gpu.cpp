// A library to preload (LD_PRELOAD) that simulates the loss of a GPU during a run. The real GPU is not
// affected. It wraps the driver functions that CUDA's runtime, cuBLASLt and cuDNN look up. After a given
// number of kernel launches, every function that uses the device fails, as when a GPU falls off the bus. For
// x86-64 Linux; scripts/gpu_lost.sh runs it.
//
//   PRIMUS_LOSE_GPU_AFTER   kernel launches until the loss; unset: never
//   PRIMUS_LOSE_GPU_WITH    error code of the driver from then on; by default 999, CUDA_ERROR_UNKNOWN
//   PRIMUS_LOSE_GPU_COUNT   file for the number of launches, written when the process ends
//
// Thread-safe.
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

namespace {

using Word = std::uintptr_t;
// Any driver function: all take machine words, twelve at most. Words that a caller did not pass are read from
// its frame and forwarded; the driver ignores them.
using Function = int (*)(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);

constexpr const char* kLaunches[] = {"cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel",
                                     "cuGraphLaunch"};
constexpr const char* kOthers[] = {
    "cuMemcpyAsync",   "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync",  "cuMemcpyDtoDAsync",  "cuMemcpy2DAsync",
    "cuMemsetD8Async", "cuMemsetD32Async",  "cuStreamQuery",      "cuStreamWaitEvent",  "cuStreamSynchronize",
    "cuEventRecord",   "cuEventQuery",      "cuEventSynchronize", "cuEventElapsedTime", "cuCtxSynchronize",
    "cuMemAlloc",      "cuMemGetInfo"};

constexpr std::size_t kSlots = 128;
struct Slot {
  Function real = nullptr;
  bool launch = false;
};
std::array<Slot, kSlots> slots;
std::size_t used = 0;
std::mutex mutex;  // guards slots and used

std::int64_t number_in(const char* variable, std::int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text ? std::atoll(text) : otherwise;
}

std::int64_t limit() {
  static const std::int64_t kLimit = number_in("PRIMUS_LOSE_GPU_AFTER", INT64_MAX);
  return kLimit;
}

struct Launches {
  std::atomic<std::int64_t> count{0};
  ~Launches() {
    const char* const path = std::getenv("PRIMUS_LOSE_GPU_COUNT");
    if (count.load() == 0 || !path) return;
    if (std::FILE* const file = std::fopen(path, "w")) {
      std::fprintf(file, "%lld\n", static_cast<long long>(count.load()));
      std::fclose(file);
    }
  }
} launches;

template <std::size_t kSlot>
int stand_in(Word a, Word b, Word c, Word d, Word e, Word f, Word g, Word h, Word i, Word j, Word k, Word l) {
  const Slot& slot = slots[kSlot];
  const std::int64_t before = slot.launch ? launches.count.fetch_add(1) : launches.count.load();
  if (before >= limit()) return static_cast<int>(number_in("PRIMUS_LOSE_GPU_WITH", 999));
  return slot.real(a, b, c, d, e, f, g, h, i, j, k, l);
}

template <std::size_t... kSlot>
constexpr std::array<Function, kSlots> stand_ins(std::index_sequence<kSlot...>) {
  return {stand_in<kSlot>...};
}
constexpr std::array<Function, kSlots> kStandIns = stand_ins(std::make_index_sequence<kSlots>());

template <std::size_t kCount>
bool names(const char* const (&list)[kCount], const char* name) {
  const std::size_t length = std::strcspn(name, "_");  // cuMemAlloc_v2, cuLaunchKernel_ptsz
  for (const char* known : list)
    if (std::strlen(known) == length && std::strncmp(known, name, length) == 0) return true;
  return false;
}

// Returns the replacement of the driver function `name`.
void* in_place_of(void* real, const char* name) {
  const bool launch = names(kLaunches, name);
  if (!real || (!launch && !names(kOthers, name))) return real;
  const std::lock_guard lock(mutex);
  std::size_t at = 0;
  while (at < used && reinterpret_cast<void*>(slots[at].real) != real) ++at;
  if (at == kSlots) return real;
  if (at == used) slots[used++] = {.real = reinterpret_cast<Function>(real), .launch = launch};
  return reinterpret_cast<void*>(kStandIns[at]);
}

void* real_get_address = nullptr;  // the driver's cuGetProcAddress; its versions begin with equal parameters

int get_address(const char* name, void** function, Word version, Word flags, Word status) {
  using GetAddress = int (*)(const char*, void**, Word, Word, Word);
  const int result = reinterpret_cast<GetAddress>(real_get_address)(name, function, version, flags, status);
  if (result == 0 && function) {
    *function = std::strncmp(name, "cuGetProcAddress", 16) == 0 ? reinterpret_cast<void*>(&get_address)
                                                                : in_place_of(*function, name);
  }
  return result;
}

}  // namespace

// Replaces the C library's dlsym, for every library of the process.
extern "C" __attribute__((visibility("default"))) void* dlsym(void* handle, const char* name) noexcept {
  using Find = void* (*)(void*, const char*);
  static const Find kFind = [] {
    void* found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!found) found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return reinterpret_cast<Find>(found);
  }();
  void* const found = kFind(handle, name);
  if (!found || std::strncmp(name, "cu", 2) != 0) return found;
  if (std::strncmp(name, "cuGetProcAddress", 16) == 0) {
    real_get_address = found;
    return reinterpret_cast<void*>(&get_address);
  }
  return in_place_of(found, name);
}
