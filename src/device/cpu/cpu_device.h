// The CPU as a device: ordinary memory, and kernels that run on the rank's own thread pool.
//
// Compute streams run kernels at once, inside launch(). Streams for copies and communication have a worker
// thread, so that the copies of a checkpoint overlap with compute, as on a GPU.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "base/system/thread_pool.h"
#include "device/device.h"
#include "tensor/tensor.h"

namespace primus::cpu {

// The context of CPU kernels. Kernels must access tensor memory through data(): device addresses may differ
// from the addresses at which the memory is mapped, as on the guard device of the tests.
class CpuContext final : public KernelContext {
 public:
  CpuContext(ThreadPool& pool, std::ptrdiff_t address_offset, bool batch_invariant = false)
      : pool_(&pool), threads_(pool.size()), offset_(address_offset), batch_invariant_(batch_invariant) {}
  // For measuring: reports workspace sizes for `threads` threads, but starts no threads.
  explicit CpuContext(int threads, bool batch_invariant = false)
      : threads_(threads), batch_invariant_(batch_invariant) {}

  // Must not be called while measuring.
  ThreadPool& pool() const { return *pool_; }
  int threads() const { return threads_; }
  bool batch_invariant() const { return batch_invariant_; }  // as in DeviceSpec
  template <class T>
  T* data(const Tensor& tensor) const {
    return tensor.data ? reinterpret_cast<T*>(static_cast<char*>(tensor.data) + offset_) : nullptr;
  }

 private:
  ThreadPool* pool_ = nullptr;
  int threads_;
  std::ptrdiff_t offset_ = 0;
  bool batch_invariant_;
};

class CpuDevice final : public Device {
 public:
  // `threads`: number of threads of this rank's pool, including the calling thread; 0: one thread per core
  // that the process may use. `kernels` must outlive the device. `batch_invariant` is as in DeviceSpec.
  CpuDevice(int threads, const KernelTable& kernels, bool batch_invariant = false);
  ~CpuDevice() override;

  std::string description() const override;
  DeviceProperties properties() const override;
  DeviceMemoryUse memory_use() const override;
  void* allocate(std::int64_t bytes) override;
  void release(void* address) noexcept override;
  void* allocate_pinned(std::int64_t bytes) override;
  void release_pinned(void* address) noexcept override;
  std::unique_ptr<Stream> create_stream(StreamKind kind) override;
  std::unique_ptr<Event> create_event() override;
  const KernelTable& kernels() const override { return kernels_; }
  KernelContext& kernel_context() override { return context_; }
  bool synchronous() const override { return true; }
  ThreadPool& pool() { return pool_; }

 private:
  ThreadPool pool_;
  const KernelTable& kernels_;
  CpuContext context_;
  std::unordered_map<void*, std::size_t> blocks_;  // allocation address -> number of mapped bytes
};

// Describes the machine's processor and memory as a device.
DeviceProperties cpu_properties();
// Returns a text such as "cpu: 2 threads, avx512 amx_bf16".
std::string describe_cpu(int threads);

// Returns the number of cores that this process may keep busy: the cores of its affinity mask, limited by the
// CPU bandwidth of its control groups.
int available_cores();

}  // namespace primus::cpu
