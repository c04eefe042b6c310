// A device that exists on paper: its kernels tell how much workspace they need, and nothing else works. What
// DevicePlugin::measuring makes, for any kind of device. See engine/rank.h on measuring.
#pragma once

#include <memory>
#include <string>

#include "device/device.h"

namespace primus {

class MeasuringDevice final : public Device {
 public:
  // `context`: what workspace functions of `kernels` look at. The table must outlive the device.
  MeasuringDevice(DeviceProperties properties, std::string description, const KernelTable& kernels,
                  std::unique_ptr<KernelContext> context);

  // The same with the context of `source`, another device to measure on: a plan for a device that is
  // elsewhere.
  MeasuringDevice(DeviceProperties properties, std::string description, const KernelTable& kernels,
                  std::unique_ptr<Device> source);

  std::string description() const override { return description_; }
  DeviceProperties properties() const override { return properties_; }
  DeviceMemoryUse memory_use() const override { return {0, properties_.memory}; }
  // Memory, and work on a stream, throw std::logic_error: whoever measures may not ask for them.
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
  std::unique_ptr<Device> source_;  // whose context it has; null: context_
  const KernelTable& kernels_;
  std::unique_ptr<KernelContext> context_;
};

}  // namespace primus
