// Streams and devices that forward every call to another one. Tests derive from them and override the calls
// that they count, delay or corrupt. Graphs are not forwarded, because the wrapped device cannot use these
// streams.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"

namespace primus::test {

class ForwardingStream : public Stream {
 public:
  explicit ForwardingStream(std::unique_ptr<Stream> below) : below_(std::move(below)) {}

  void launch(KernelFunction kernel, const void* arguments, std::size_t bytes) override {
    below_->launch(kernel, arguments, bytes);
  }
  void copy_to_device(void* device, const void* host, std::int64_t bytes) override {
    below_->copy_to_device(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, std::int64_t bytes) override {
    below_->copy_to_host(host, device, bytes);
  }
  void copy_on_device(void* to, const void* from, std::int64_t bytes) override {
    below_->copy_on_device(to, from, bytes);
  }
  void fill_zero(void* device, std::int64_t bytes) override { below_->fill_zero(device, bytes); }
  void record(Event& event) override { below_->record(event); }
  void wait(Event& event) override { below_->wait(event); }
  void synchronize() override { below_->synchronize(); }
  void stop_on(const std::atomic<bool>* stop) override { below_->stop_on(stop); }

  Stream& below() { return *below_; }

 private:
  std::unique_ptr<Stream> below_;
};

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(std::unique_ptr<Device> below) : below_(std::move(below)) {}

  std::string description() const override { return below_->description(); }
  DeviceProperties properties() const override {
    DeviceProperties properties = below_->properties();
    properties.graphs = false;
    return properties;
  }
  DeviceMemoryUse memory_use() const override { return below_->memory_use(); }
  void* allocate(std::int64_t bytes) override { return below_->allocate(bytes); }
  void release(void* address) noexcept override { below_->release(address); }
  void* allocate_pinned(std::int64_t bytes) override { return below_->allocate_pinned(bytes); }
  void release_pinned(void* address) noexcept override { below_->release_pinned(address); }
  std::unique_ptr<Stream> create_stream(StreamKind kind) override { return below_->create_stream(kind); }
  std::unique_ptr<Event> create_event() override { return below_->create_event(); }
  const KernelTable& kernels() const override { return below_->kernels(); }
  KernelContext& kernel_context() override { return below_->kernel_context(); }
  std::vector<KernelChoice> choices() const override { return below_->choices(); }
  bool synchronous() const override { return below_->synchronous(); }

  Device& below() { return *below_; }

 private:
  std::unique_ptr<Device> below_;
};

}  // namespace primus::test
