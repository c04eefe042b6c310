// Any device, with a count of how often the host has waited for it.
//
//   auto waits = std::make_shared<CountingDevice::Waits>();
//   CountingDevice device(std::make_unique<GuardDevice>(...), waits);
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "device/device.h"

namespace primus::test {

class CountingDevice final : public Device {
 public:
  struct Waits {
    std::atomic<std::int64_t> streams = 0;  // for all of a stream's work
    std::atomic<std::int64_t> events = 0;
  };
  using Counter = std::shared_ptr<Waits>;

  // `at_end` is called when the device goes.
  CountingDevice(std::unique_ptr<Device> inner, Counter waits,
                 std::function<void(const Waits& waits)> at_end = {})
      : inner_(std::move(inner)), waits_(std::move(waits)), at_end_(std::move(at_end)) {}
  ~CountingDevice() override {
    if (at_end_) at_end_(*waits_);
  }
  CountingDevice(const CountingDevice&) = delete;
  CountingDevice& operator=(const CountingDevice&) = delete;

  std::string description() const override { return inner_->description(); }
  DeviceProperties properties() const override { return inner_->properties(); }
  DeviceMemoryUse memory_use() const override { return inner_->memory_use(); }
  void* allocate(std::int64_t bytes) override { return inner_->allocate(bytes); }
  void release(void* address) noexcept override { inner_->release(address); }
  void* allocate_pinned(std::int64_t bytes) override { return inner_->allocate_pinned(bytes); }
  void release_pinned(void* address) noexcept override { inner_->release_pinned(address); }
  const KernelTable& kernels() const override { return inner_->kernels(); }
  KernelContext& kernel_context() override { return inner_->kernel_context(); }
  bool synchronous() const override { return inner_->synchronous(); }
  std::unique_ptr<Event> create_event() override {
    return std::make_unique<CountingEvent>(inner_->create_event(), waits_);
  }
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    return std::make_unique<CountingStream>(inner_->create_stream(kind), waits_);
  }

 private:
  class CountingEvent final : public Event {
   public:
    CountingEvent(std::unique_ptr<Event> inner, Counter waits)
        : inner_(std::move(inner)), waits_(std::move(waits)) {}
    void synchronize() override {
      ++waits_->events;
      inner_->synchronize();
    }
    static Event& inner_of(Event& event) { return *static_cast<CountingEvent&>(event).inner_; }

   private:
    std::unique_ptr<Event> inner_;
    Counter waits_;
  };

  class CountingStream final : public Stream {
   public:
    CountingStream(std::unique_ptr<Stream> inner, Counter waits)
        : inner_(std::move(inner)), waits_(std::move(waits)) {}
    void launch(KernelFunction kernel, const void* arguments, std::size_t bytes) override {
      inner_->launch(kernel, arguments, bytes);
    }
    void copy_to_device(void* to, const void* from, std::int64_t n) override {
      inner_->copy_to_device(to, from, n);
    }
    void copy_to_host(void* to, const void* from, std::int64_t n) override {
      inner_->copy_to_host(to, from, n);
    }
    void copy_on_device(void* to, const void* from, std::int64_t n) override {
      inner_->copy_on_device(to, from, n);
    }
    void fill_zero(void* to, std::int64_t n) override { inner_->fill_zero(to, n); }
    void record(Event& event) override { inner_->record(CountingEvent::inner_of(event)); }
    void wait(Event& event) override { inner_->wait(CountingEvent::inner_of(event)); }
    void synchronize() override {
      ++waits_->streams;
      inner_->synchronize();
    }

   private:
    std::unique_ptr<Stream> inner_;
    Counter waits_;
  };

  std::unique_ptr<Device> inner_;
  Counter waits_;
  std::function<void(const Waits&)> at_end_;
};

}  // namespace primus::test
