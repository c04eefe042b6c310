#include "device/cpu/cpu_device.h"

#include <cpuid.h>
#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/poison.h"
#include "base/system/available_cores.h"
#include "base/system/host_memory.h"
#include "device/cpu/cpu_stream.h"
#include "tensor/arena.h"

namespace primus::cpu {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPage = 4096;
static_assert(kPage % Arena::kAlignment == 0);

bool has_amx_bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & (1U << 22)) != 0;
}

void unmap(void* address, std::size_t bytes) {
  unpoison(address, bytes);
  munmap(address, bytes);
}

std::string instruction_sets() {
  std::string names;
  if (__builtin_cpu_supports("avx512f")) {
    names = " avx512";
  } else if (__builtin_cpu_supports("avx2")) {
    names = " avx2";
  }
  if (__builtin_cpu_supports("avx512bf16")) names += " avx512_bf16";
  if (has_amx_bf16()) names += " amx_bf16";
  return names.empty() ? "" : "," + names;
}

DeviceProperties read_properties() {
  DeviceProperties properties{.kind = "cpu", .ordinal = 0, .name = "CPU", .memory = 0, .host_memory = true};
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string line; std::getline(cpus, line);) {
    const std::size_t colon = line.find(": ");
    if (!line.starts_with("model name") || colon == std::string::npos) continue;
    properties.name = line.substr(colon + 2);
    break;
  }
  properties.memory = host_memory().total;
  return properties;
}

}  // namespace

CpuDevice::CpuDevice(int threads, const KernelTable& kernels, bool batch_invariant)
    : pool_(threads == 0 ? available_cores() : threads),
      kernels_(kernels),
      context_(pool_, 0, batch_invariant) {}

CpuDevice::~CpuDevice() {
  for (const auto& [address, bytes] : blocks_) unmap(address, bytes);
}

int available_cores() { return primus::available_cores(); }

std::string describe_cpu(int threads) {
  return "cpu: " + std::to_string(threads) + (threads == 1 ? " thread" : " threads") + instruction_sets();
}

DeviceProperties cpu_properties() {
  // Files of /proc and /sys are read only once, because every pass of a model reads the properties.
  static const DeviceProperties properties = read_properties();
  return properties;
}

std::string CpuDevice::description() const { return describe_cpu(pool_.size()); }

DeviceProperties CpuDevice::properties() const { return cpu_properties(); }

DeviceMemoryUse CpuDevice::memory_use() const {
  const HostMemory memory = host_memory();
  return {.used = memory.total - std::min(memory.available, memory.total), .total = memory.total};
}

void* CpuDevice::allocate_pinned(std::int64_t bytes) {
  void* const memory = std::aligned_alloc(
      Arena::kAlignment, static_cast<std::size_t>((std::max<std::int64_t>(bytes, 1) + Arena::kAlignment - 1) /
                                                  Arena::kAlignment * Arena::kAlignment));
  if (!memory) throw io_error("cannot allocate " + std::to_string(bytes) + " bytes of host memory", ENOMEM);
  return memory;
}

void CpuDevice::release_pinned(void* address) noexcept { std::free(address); }

// New pages are zero, and occupy memory only after the first access. Large blocks use huge pages, because a
// step accesses gigabytes. With small pages, page faults in the first step and TLB misses in all steps would
// take noticeable time.
void* CpuDevice::allocate(std::int64_t bytes) {
  const auto fail = [&](int error) {
    return io_error("cannot allocate " + std::to_string(bytes) + " bytes of memory", error,
                    "use a smaller model, micro-batch or sequence, or recompute more activations");
  };
  if (bytes < 0 || bytes > (std::int64_t{1} << 46)) throw fail(ENOMEM);
  const std::size_t unit = static_cast<std::size_t>(bytes) >= kHugePage ? kHugePage : kPage;
  // With AddressSanitizer, at least one inaccessible page follows a block, so that overruns are detected.
  const std::size_t wanted =
      std::max<std::size_t>(static_cast<std::size_t>(bytes), 1) + (kPoisons ? kPage : 0);
  const std::size_t size = (wanted + unit - 1) / unit * unit;
  // Extra bytes for alignment, which are released below.
  const std::size_t slack = unit == kHugePage ? kHugePage : 0;
  void* raw = mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) throw fail(errno);
  char* begin = static_cast<char*>(raw);
  if (slack != 0) {
    const std::size_t skip = (kHugePage - reinterpret_cast<std::uintptr_t>(raw) % kHugePage) % kHugePage;
    if (skip != 0) munmap(begin, skip);
    if (skip != slack) munmap(begin + skip + size, slack - skip);
    begin += skip;
    madvise(begin, size, MADV_HUGEPAGE);  // only advice: errors are ignored, because the Linux kernel may not
                                          // support huge pages
  }
  blocks_.emplace(begin, size);
  poison(begin + bytes, size - static_cast<std::size_t>(bytes));
  return begin;
}

void CpuDevice::release(void* address) noexcept {
  const auto block = blocks_.find(address);
  if (block == blocks_.end()) {
    assert(address == nullptr && "not from this device");
    return;
  }
  unmap(block->first, block->second);
  blocks_.erase(block);
}

std::unique_ptr<Stream> CpuDevice::create_stream(StreamKind kind) {
  if (kind == StreamKind::kCompute) return std::make_unique<InlineStream>(context_);
  if (kind == StreamKind::kCopy) return std::make_unique<CallerStream>();
  // Kernels of other streams run in a separate thread, because only the compute stream may use the pool.
  return std::make_unique<WorkerStream>(1, 0);
}

std::unique_ptr<Event> CpuDevice::create_event() { return std::make_unique<CpuEvent>(); }

}  // namespace primus::cpu
