// The context of GPU kernels: their stream, memory for partial results, and the libraries that some of them
// call. Each stream has a context. Each device has one more context, which is used only to compute workspace
// sizes. Only nvcc and clang for HIP compile this file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <typeindex>
#include <vector>

#include "device/device.h"
#include "device/gpu/fault.h"
#include "device/gpu/runtime.h"
#include "device/plugin.h"
#include "tensor/tensor.h"

namespace primus::gpu::PRIMUS_GPU {

// State that all contexts of a device share. Thread-safe.
class GpuShared {
 public:
  // `tuning_folder` replaces the folder in `spec`.
  GpuShared(const DeviceSpec& spec, bool present, std::string tuning_folder)
      : index_(spec.ordinal),
        present_(present),
        deterministic_(spec.deterministic),
        attention_library_(spec.attention_library),
        batch_invariant_(spec.batch_invariant),
        tuning_folder_(std::move(tuning_folder)) {}

  int index() const { return index_; }
  bool present() const { return present_; }  // false for a measuring device, which has no hardware
  bool deterministic() const { return deterministic_; }
  bool attention_library() const { return attention_library_; }        // as in DeviceSpec
  bool batch_invariant() const { return batch_invariant_; }            // as in DeviceSpec
  const std::string& tuning_folder() const { return tuning_folder_; }  // if empty, algorithms are not timed

  // Returns the state of an operator for all streams of the device. The first call constructs it from this
  // object.
  template <class Library>
  Library& library() {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<void>& slot = libraries_[typeid(Library)];
    if (!slot) slot = std::make_shared<Library>(*this);
    return *static_cast<Library*>(slot.get());
  }

  void count(const std::string& choice) {
    const std::lock_guard lock(mutex_);
    const auto same = [&](const KernelChoice& c) { return c.what == choice; };
    auto at = std::find_if(choices_.begin(), choices_.end(), same);
    if (at == choices_.end()) at = choices_.insert(at, {choice, 0});
    ++at->calls;
  }
  std::vector<KernelChoice> choices() const {
    const std::lock_guard lock(mutex_);
    return choices_;
  }

 private:
  const int index_;
  const bool present_, deterministic_, attention_library_, batch_invariant_;
  const std::string tuning_folder_;
  mutable std::mutex mutex_;
  std::map<std::type_index, std::shared_ptr<void>> libraries_;
  std::vector<KernelChoice> choices_;
};

class GpuContext : public KernelContext {
 public:
  // This is enough for one double per block and 524288 blocks.
  static constexpr std::int64_t kPartialBytes = std::int64_t{4} << 20;

  // `partials` and `faults` must outlive the context. If all pointers are null, the context is used only to
  // compute workspace sizes.
  GpuContext(std::shared_ptr<GpuShared> shared, StreamHandle stream, void* partials, Fault* faults,
             int multiprocessors, int capability, std::int64_t max_shared_bytes)
      : shared_(std::move(shared)),
        stream_(stream),
        partials_(partials),
        faults_(faults),
        multiprocessors_(multiprocessors),
        capability_(capability),
        max_shared_bytes_(max_shared_bytes) {}

  StreamHandle stream() const { return stream_; }
  Fault* faults() const { return faults_; }
  int multiprocessors() const { return multiprocessors_; }
  int capability() const { return capability_; }                       // NVIDIA's compute capability: 80, 90
  bool batch_invariant() const { return shared_->batch_invariant(); }  // as in DeviceSpec

  template <class T>
  T* data(const Tensor& tensor) const {
    return static_cast<T*>(tensor.data);
  }

  // Every operator of a stream uses this memory. This is safe, because operators of a stream run one after
  // another.
  void* partials(std::int64_t bytes) const {
    if (bytes > kPartialBytes) throw std::logic_error("gpu: too many partial results");
    return partials_;
  }

  GpuShared& shared() const { return *shared_; }

  // Returns the state of an operator for this stream (a library handle, chosen algorithms). The first call
  // constructs it from this object.
  template <class Library>
  Library& library() {
    std::shared_ptr<void>& slot = libraries_[typeid(Library)];
    if (!slot) slot = std::make_shared<Library>(*this);
    return *static_cast<Library*>(slot.get());
  }

  // Returns the max. bytes of shared memory per block.
  std::int64_t max_shared_bytes() const { return max_shared_bytes_; }
  // Allows a kernel `bytes` of shared memory, which may be more than a GPU allows by default.
  template <class Kernel>
  void allow_shared(Kernel* kernel, std::size_t bytes) const {
    if (static_cast<std::int64_t>(bytes) > max_shared_bytes_) {
      throw unsupported("a kernel needs " + std::to_string(bytes) +
                        " bytes of shared memory, and this GPU has " + std::to_string(max_shared_bytes_));
    }
    gpu::PRIMUS_GPU::allow_shared(reinterpret_cast<const void*>(kernel), bytes);
  }
  void check_launch() const { gpu::PRIMUS_GPU::check_launch(); }

 private:
  std::shared_ptr<GpuShared> shared_;
  StreamHandle stream_;
  void* partials_;
  Fault* faults_;
  int multiprocessors_, capability_;
  std::int64_t max_shared_bytes_;
  std::map<std::type_index, std::shared_ptr<void>> libraries_;  // destroyed before shared_, which it may use
};

}  // namespace primus::gpu::PRIMUS_GPU
