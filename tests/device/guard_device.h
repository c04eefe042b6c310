// A CPU device that behaves like a GPU in the ways that tests need. The host can neither read nor write the
// addresses that this device returns. Every stream, including the compute stream, runs asynchronously and a
// little late. Code that accesses tensor memory outside kernels and copies crashes; code that lacks a
// synchronization computes wrong results.
//
// Two equal address ranges are reserved. Handed-out addresses lie in the first range, which is never
// accessible. Kernels and copies reach the memory at the corresponding address of the second range, by the
// constant offset of CpuContext.
//
//   GuardDevice device(2, turbo::cpu_kernel_table());
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_stream.h"

namespace primus::test {

// A stream with a worker that sleeps before each operation.
class GuardStream final : public Stream {
 public:
  GuardStream(int threads, std::ptrdiff_t offset, std::chrono::microseconds delay)
      : stream_(threads, offset), delay_(delay) {}

  void launch(KernelFunction kernel, const void* arguments, std::size_t argument_bytes) override {
    dawdle();
    stream_.launch(kernel, arguments, argument_bytes);
  }
  void copy_to_device(void* device, const void* host, std::int64_t bytes) override {
    dawdle();
    stream_.copy_to_device(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, std::int64_t bytes) override {
    dawdle();
    stream_.copy_to_host(host, device, bytes);
  }
  void copy_on_device(void* to, const void* from, std::int64_t bytes) override {
    dawdle();
    stream_.copy_on_device(to, from, bytes);
  }
  void fill_zero(void* device, std::int64_t bytes) override {
    dawdle();
    stream_.fill_zero(device, bytes);
  }
  void record(Event& event) override { stream_.record(event); }
  void wait(Event& event) override { stream_.wait(event); }
  void synchronize() override { stream_.synchronize(); }

 private:
  void dawdle() {
    stream_.launch(
        [](KernelContext&, const void* delay) {
          std::this_thread::sleep_for(*static_cast<const std::chrono::microseconds*>(delay));
        },
        &delay_, sizeof(delay_));
  }

  cpu::WorkerStream stream_;
  std::chrono::microseconds delay_;
};

class GuardDevice final : public Device {
 public:
  static constexpr std::size_t kRange = std::size_t{1} << 36;  // address space, not memory

  // `copy_delay` applies to each operation on a copy stream.
  GuardDevice(int threads, const KernelTable& kernels,
              std::chrono::microseconds delay = std::chrono::microseconds(20),
              std::chrono::microseconds copy_delay = std::chrono::microseconds(20))
      : threads_(threads),
        delay_(delay),
        copy_delay_(copy_delay),
        kernels_(kernels),
        pool_(threads),
        context_(pool_, kRange) {
    void* range = mmap(nullptr, 2 * kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw io_error("cannot reserve addresses", errno);
    base_ = static_cast<char*>(range);
  }
  ~GuardDevice() override { munmap(base_, 2 * kRange); }
  GuardDevice(const GuardDevice&) = delete;
  GuardDevice& operator=(const GuardDevice&) = delete;

  std::string description() const override { return "guard: " + std::to_string(threads_) + " threads"; }
  DeviceProperties properties() const override { return guard_properties(); }
  DeviceMemoryUse memory_use() const override {
    std::size_t used = 0;
    for (const auto& [offset, bytes] : taken_) used += bytes;
    return {.used = static_cast<std::int64_t>(used), .total = static_cast<std::int64_t>(kRange)};
  }
  static DeviceProperties guard_properties() {
    return {.kind = "guard",
            .ordinal = 0,
            .name = "guarded host memory",
            .memory = static_cast<std::int64_t>(kRange),
            .host_memory = true};
  }

  // Allocates whole pages, followed by an inaccessible one.
  void* allocate(std::int64_t bytes) override {
    const std::size_t pages = (static_cast<std::size_t>(bytes) + kPage - 1) / kPage * kPage + kPage;
    const std::size_t offset = end_;
    if (bytes < 0 || pages > kRange - offset) throw io_error("no guarded addresses left", ENOMEM);
    if (pages > kPage && mprotect(alias(offset), pages - kPage, PROT_READ | PROT_WRITE) != 0) {
      throw io_error("cannot allocate " + std::to_string(bytes) + " bytes", errno);
    }
    end_ += pages;
    taken_[offset] = pages;
    return base_ + offset;
  }

  // Addresses are never reused, so that every access to a stale one faults.
  void release(void* address) noexcept override {
    const auto block = taken_.find(static_cast<std::size_t>(static_cast<char*>(address) - base_));
    if (block == taken_.end()) return;
    // Mapping the range again frees the memory and forbids access in one call.
    mmap(alias(block->first), block->second, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    taken_.erase(block);
  }

  // Pinned memory is not guarded: the host may use it during copies, and must order its accesses.
  void* allocate_pinned(std::int64_t bytes) override {
    const auto whole = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
    return std::aligned_alloc(kPage, (whole + kPage - 1) / kPage * kPage);
  }
  void release_pinned(void* address) noexcept override { std::free(address); }

  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    return std::make_unique<GuardStream>(threads_, static_cast<std::ptrdiff_t>(kRange),
                                         kind == StreamKind::kCopy ? copy_delay_ : delay_);
  }
  std::unique_ptr<Event> create_event() override { return std::make_unique<cpu::CpuEvent>(); }
  const KernelTable& kernels() const override { return kernels_; }
  KernelContext& kernel_context() override { return context_; }
  bool synchronous() const override { return false; }

 private:
  static constexpr std::size_t kPage = 4096;
  char* alias(std::size_t offset) const { return base_ + kRange + offset; }

  int threads_;
  std::chrono::microseconds delay_, copy_delay_;
  const KernelTable& kernels_;
  ThreadPool pool_;  // runs nothing; its thread count sizes workspaces
  cpu::CpuContext context_;
  char* base_ = nullptr;
  std::size_t end_ = 0;                                 // offset of the first address never handed out
  std::unordered_map<std::size_t, std::size_t> taken_;  // offset -> bytes
};

}  // namespace primus::test
