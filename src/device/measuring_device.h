// A device without hardware, which supports only one operation: its kernels report their workspace sizes.
// DevicePlugin::measuring creates one for any kind of device. engine/runtime/rank.h describes the measure
// mode.
#pragma once

#include <memory>
#include <string>

#include "device/device.h"

namespace primus {

class MeasuringDevice final : public Device {
 public:
  // `context` is passed to workspace functions of `kernels`. `kernels` must outlive the device.
  MeasuringDevice(DeviceProperties properties, std::string description, const KernelTable& kernels,
                  std::unique_ptr<KernelContext> context);

  // Uses the context of `source`, another measuring device. For plans for devices of other machines.
  MeasuringDevice(DeviceProperties properties, std::string description, const KernelTable& kernels,
                  std::unique_ptr<Device> source);

  std::string description() const override { return description_; }
  DeviceProperties properties() const override { return properties_; }
  DeviceMemoryUse memory_use() const override { return {0, properties_.memory}; }
  // These functions throw std::logic_error: in measure mode, code must not allocate memory or enqueue work.
  void* allocate(std::int64_t bytes) override;
  void release(void* address) noexcept override;
  void* allocate_pinned(std::int64_t bytes) override;
  void release_pinned(void* address) noexcept override;
  std::unique_ptr<Stream> create_stream(StreamKind kind) override;
  std::unique_ptr<Event> create_event() override;
  const KernelTable& kernels() const override { return kernels_; }
  KernelContext& kernel_context() override { return context_ ? *context_ : source_->kernel_context(); }
  bool synchronous() const override { return false; }

 private:
  DeviceProperties properties_;
  std::string description_;
  std::unique_ptr<Device> source_;  // owner of the context; null: context_ is used
  const KernelTable& kernels_;
  std::unique_ptr<KernelContext> context_;
};

}  // namespace primus
