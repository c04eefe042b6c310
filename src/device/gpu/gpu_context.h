// What GPU kernels get from their device: the stream they are enqueued on, memory for partial results, and
// the libraries that some of them call. One per stream. Compiled by nvcc and by clang for HIP only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/device.h"
#include "device/gpu/fault.h"
#include "device/gpu/runtime.h"
#include "tensor/tensor.h"

namespace primus::gpu::PRIMUS_GPU {

class GpuContext : public KernelContext {
 public:
  // Enough for one double from each of many thousand blocks.
  static constexpr std::int64_t kPartialBytes = std::int64_t{4} << 20;

  // `partials` and `faults` live as long as the context; all null: to ask kernels for workspace sizes only.
  GpuContext(StreamHandle stream, void* partials, Fault* faults, int multiprocessors,
             std::int64_t most_shared_bytes)
      : stream_(stream),
        partials_(partials),
        faults_(faults),
        multiprocessors_(multiprocessors),
        most_shared_bytes_(most_shared_bytes) {}

  StreamHandle stream() const { return stream_; }
  Fault* faults() const { return faults_; }
  int multiprocessors() const { return multiprocessors_; }

  template <class T>
  T* data(const Tensor& tensor) const {
    return static_cast<T*>(tensor.data);
  }

  // Stream order makes it safe to hand out the same memory again and again.
  void* partials(std::int64_t bytes) const {
    if (bytes > kPartialBytes) throw std::logic_error("gpu: too many partial results");
    return partials_;
  }

  // What one operator keeps from call to call (a library's handle, chosen algorithms); made at first use.
  template <class Library>
  Library& library() {
    if (!library_) library_ = std::make_shared<Library>();
    return *static_cast<Library*>(library_.get());
  }

  // Lets a kernel use more shared memory than every GPU gives without being asked.
  template <class Kernel>
  void allow_shared(Kernel* kernel, std::size_t bytes) const {
    if (static_cast<std::int64_t>(bytes) > most_shared_bytes_) {
      throw unsupported("a kernel needs " + std::to_string(bytes) +
                        " bytes of shared memory, and this GPU has " + std::to_string(most_shared_bytes_));
    }
    gpu::PRIMUS_GPU::allow_shared(reinterpret_cast<const void*>(kernel), bytes);
  }
  void check_launch() const { gpu::PRIMUS_GPU::check_launch(); }

 private:
  StreamHandle stream_;
  void* partials_;
  Fault* faults_;
  int multiprocessors_;
  std::int64_t most_shared_bytes_;
  std::shared_ptr<void> library_;
};

}  // namespace primus::gpu::PRIMUS_GPU
