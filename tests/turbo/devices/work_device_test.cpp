// Tests of the meter of a device's own work, with a device whose clock only moves by kernels and waits.
#include "turbo/devices/work_device.h"

#include <gtest/gtest.h>

#include "device/forwarding_device.h"
#include "device/watched.h"
#include "turbo/devices/devices.h"

namespace primus::turbo {
namespace {

double now = 0;             // the clock of the device
double last_reached = 1e9;  // the device has passed events up to this time
int records = 0;

struct ClockEvent final : Event {
  void synchronize() override {}
  double time = 0;
};

// A kernel takes as long as its argument says, and a wait one second.
class ClockStream final : public test::ForwardingStream {
 public:
  using ForwardingStream::ForwardingStream;
  void launch(KernelFunction, const void* arguments, std::size_t) override {
    now += *static_cast<const double*>(arguments);
  }
  void record(Event& event) override {
    static_cast<ClockEvent&>(event).time = now;
    ++records;
  }
  void wait(Event&) override { now += 1; }
};

class ClockDevice final : public test::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    return std::make_unique<ClockStream>(ForwardingDevice::create_stream(kind));
  }
};

const DeviceTiming kTiming{
    .create = [](Device&) -> std::unique_ptr<Event> { return std::make_unique<ClockEvent>(); },
    .reached = [](Event& event) { return static_cast<ClockEvent&>(event).time <= last_reached; },
    .seconds =
        [](Event& from, Event& to) {
          return static_cast<ClockEvent&>(to).time - static_cast<ClockEvent&>(from).time;
        }};

class WorkDevice : public ::testing::Test {
 protected:
  WorkDevice() {
    now = records = 0;
    last_reached = 1e9;
    auto device = std::make_unique<ClockDevice>(open_device({.kind = "cpu", .threads = 1}));
    meter_ = std::make_shared<WorkMeter>(*device, kTiming);
    device_ = make_work_device(std::move(device), meter_);
    stream_ = device_->create_stream(StreamKind::kCompute);
  }
  void work(double seconds) { stream_->launch(nullptr, &seconds, sizeof(seconds)); }
  void collective(double seconds) {
    const WatchedWork watched(stream_.get(), [] { return WorkLabel{"all_reduce", "communication"}; });
    work(seconds);
    stream_->wait(event_);  // counts only once
  }
  void step(double passes, double update, int waits = 1) {
    meter_->begin_step(*stream_);
    work(passes);
    for (int i = 0; i < waits; ++i) stream_->wait(event_);
    meter_->end_passes(*stream_, 0.25);
    work(update);
    collective(4);
    meter_->end_update(*stream_);
  }

  ClockEvent event_;
  std::shared_ptr<WorkMeter> meter_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(WorkDevice, WaitsForOtherRanksAreNoWork) {
  EXPECT_FALSE(meter_->newest());
  step(10, 2);
  const auto work = meter_->newest();
  ASSERT_TRUE(work);
  EXPECT_DOUBLE_EQ(work->passes, 10);
  EXPECT_DOUBLE_EQ(work->update, 2);
  EXPECT_DOUBLE_EQ(work->data, 0.25);
}

TEST_F(WorkDevice, AStepIsReadWhenTheDeviceHasPassedIt) {
  step(10, 2);
  last_reached = now;
  step(20, 2);
  EXPECT_DOUBLE_EQ(meter_->newest()->passes, 10);
  EXPECT_DOUBLE_EQ(meter_->newest()->passes, 10);
  last_reached = now;
  EXPECT_DOUBLE_EQ(meter_->newest()->passes, 20);
}

TEST_F(WorkDevice, AnAbandonedStepIsForgotten) {
  meter_->begin_step(*stream_);
  work(5);
  stream_->wait(event_);
  step(10, 2);
  EXPECT_DOUBLE_EQ(meter_->newest()->passes, 10);
}

// With 1000 waits in a step of 0.3 s, the events would cost 1 %, so every fourth step is measured or less.
TEST_F(WorkDevice, ShortStepsWithManyWaitsAreMeasuredSeldom) {
  constexpr int kSteps = 100;
  constexpr double kWaits = 1000, kSeconds = 0.3;
  for (int i = 0; i < kSteps; ++i) {
    meter_->begin_step(*stream_);
    work(kSeconds);
    for (int wait = 0; wait < kWaits; ++wait) {
      const WatchedWork watched(stream_.get(), [] { return WorkLabel{"all_gather", "communication"}; });
    }
    meter_->end_passes(*stream_, 0);
    meter_->end_update(*stream_);
  }
  const double cost = 1.5e-6 * records / (kSteps * kSeconds);
  EXPECT_LT(cost, 0.0028);
  EXPECT_GT(cost, 0.001);
}

}  // namespace
}  // namespace primus::turbo
