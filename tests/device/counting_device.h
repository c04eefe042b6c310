// Wraps any device and counts how often the host waits for it.
//
//   auto waits = std::make_shared<CountingDevice::Waits>();
//   CountingDevice device(std::make_unique<GuardDevice>(...), waits);
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "device/forwarding_device.h"

namespace primus::test {

class CountingDevice final : public ForwardingDevice {
 public:
  struct Waits {
    std::atomic<std::int64_t> streams = 0;  // waits for a whole stream
    std::atomic<std::int64_t> events = 0;
  };
  using Counter = std::shared_ptr<Waits>;

  // Calls `at_end` when the device is destroyed.
  CountingDevice(std::unique_ptr<Device> below, Counter waits,
                 std::function<void(const Waits& waits)> at_end = {})
      : ForwardingDevice(std::move(below)), waits_(std::move(waits)), at_end_(std::move(at_end)) {}
  ~CountingDevice() override {
    if (at_end_) at_end_(*waits_);
  }
  CountingDevice(const CountingDevice&) = delete;
  CountingDevice& operator=(const CountingDevice&) = delete;

  std::unique_ptr<Event> create_event() override {
    return std::make_unique<CountingEvent>(below().create_event(), waits_);
  }
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    return std::make_unique<CountingStream>(below().create_stream(kind), waits_);
  }

 private:
  class CountingEvent final : public Event {
   public:
    CountingEvent(std::unique_ptr<Event> below, Counter waits)
        : below_(std::move(below)), waits_(std::move(waits)) {}
    void synchronize() override {
      ++waits_->events;
      below_->synchronize();
    }
    static Event& below(Event& event) { return *static_cast<CountingEvent&>(event).below_; }

   private:
    std::unique_ptr<Event> below_;
    Counter waits_;
  };

  class CountingStream final : public ForwardingStream {
   public:
    CountingStream(std::unique_ptr<Stream> stream, Counter waits)
        : ForwardingStream(std::move(stream)), waits_(std::move(waits)) {}
    void record(Event& event) override { below().record(CountingEvent::below(event)); }
    void wait(Event& event) override { below().wait(CountingEvent::below(event)); }
    void synchronize() override {
      ++waits_->streams;
      below().synchronize();
    }

   private:
    Counter waits_;
  };

  Counter waits_;
  std::function<void(const Waits&)> at_end_;
};

}  // namespace primus::test
