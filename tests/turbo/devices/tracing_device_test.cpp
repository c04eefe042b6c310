// Tests that a tracing device has the results of the wrapped device, and records the work of each stream in
// order.
#include "turbo/devices/tracing_device.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "device/forwarding_device.h"
#include "tensor/arena.h"
#include "turbo/context.h"
#include "turbo/devices/devices.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::turbo {
namespace {

constexpr std::int64_t kCount = 1000;

struct Traced {
  std::vector<float> result;
  std::shared_ptr<TraceRecorder> recorder = std::make_shared<TraceRecorder>();
};

// Runs Fill and Add kernels on the compute stream. A copy stream waits for these kernels and copies the
// result.
Traced trace_of(const std::string& name) {
  Traced run{.result = std::vector<float>(kCount)};
  std::unique_ptr<Device> device = open_device(parse_device(name, 1));
  const DeviceTiming* const timing = timing_of(*device);
  device = make_tracing_device(std::move(device), timing, run.recorder);
  const auto compute = device->create_stream(StreamKind::kCompute),
             copies = device->create_stream(StreamKind::kCopy);
  const auto event = device->create_event();
  void* const memory = device->allocate(3 * kCount * 4);
  void* const pinned = device->allocate_pinned(kCount * 4);
  const auto tensor = [&](std::int64_t i) {
    return Tensor(static_cast<char*>(memory) + i * kCount * 4, DType::kF32, {kCount});
  };
  Arena scratch("scratch", memory, 0);
  Meter meter;
  Context context{*device, *compute, scratch, meter};
  launch(context, Fill{.out = tensor(0), .value = 7});  // this kernel is not recorded
  run.recorder->start();
  launch(context, Fill{.out = tensor(0), .value = 1});
  launch(context, Fill{.out = tensor(1), .value = 2});
  launch(context, Add{.a = tensor(0), .b = tensor(1), .out = tensor(2)});
  compute->record(*event);
  copies->wait(*event);
  copies->copy_to_host(pinned, tensor(2).data, kCount * 4);
  copies->synchronize();
  compute->synchronize();
  run.recorder->stop();
  launch(context, Fill{.out = tensor(0), .value = 7});
  compute->synchronize();
  std::copy_n(static_cast<const float*>(pinned), kCount, run.result.begin());
  device->release(memory);
  device->release_pinned(pinned);
  return run;
}

TEST(TracingDevice, RecordsTheKernelsOfEachStream) {
  setenv("PRIMUS_PLUGIN_PATH", PRIMUS_TEST_PLUGINS, 1);
  // The guard device runs its streams asynchronously, on separate threads.
  for (const char* device : {"cpu", "guard"}) {
    const Traced traced = trace_of(device);
    EXPECT_EQ(traced.result, std::vector<float>(kCount, 3.0F)) << device;
    const auto spans = traced.recorder->spans();
    ASSERT_EQ(spans.size(), 4U) << device;
    const char* const names[] = {"Fill", "Fill", "Add", "copy to host"};
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(spans[i].name, names[i]) << device;
      EXPECT_LE(spans[i].begin, spans[i].end);
      EXPECT_EQ(spans[i].track, i < 3 ? 1 : 2);
      const double before = i > 0 ? spans[i - 1].end : 0;
      EXPECT_LE(before, spans[i].begin);  // the copy waits for the add
    }
  }
  unsetenv("PRIMUS_PLUGIN_PATH");
}

// A device that measures times by events, as GPUs do. The device is a CPU device with an artificial clock. It
// completes work as soon as the work is enqueued.
class TimedEvent final : public Event {
 public:
  void synchronize() override { reached = true; }
  double time = 0;
  bool reached = false;  // the test or synchronize() sets it
};

class TimedStream final : public test::ForwardingStream {
 public:
  using ForwardingStream::ForwardingStream;
  void record(Event& event) override { static_cast<TimedEvent&>(event).time = ++clock_; }
  void wait(Event&) override {}
  void synchronize() override {}

 private:
  double clock_ = 0;  // each event advances the clock by one second
};

class TimedDevice final : public test::ForwardingDevice {
 public:
  TimedDevice() : ForwardingDevice(open_device(parse_device("cpu", 1))) {}
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    return std::make_unique<TimedStream>(below().create_stream(kind));
  }
  bool synchronous() const override { return false; }

  std::unique_ptr<Event> create_timed() {
    auto event = std::make_unique<TimedEvent>();
    created.push_back(event.get());
    return event;
  }
  std::vector<TimedEvent*> created;
};

// If a device measures by events, spans appear when their events are reached. The times of spans are
// converted to the clock of the host.
TEST(TracingDevice, UsesTimesThatTheDeviceMeasures) {
  static constexpr DeviceTiming kTiming{
      .create = [](Device& device) { return static_cast<TimedDevice&>(device).create_timed(); },
      .reached = [](Event& event) { return static_cast<TimedEvent&>(event).reached; },
      .seconds =
          [](Event& from, Event& to) {
            return static_cast<TimedEvent&>(to).time - static_cast<TimedEvent&>(from).time;
          }};
  auto timed = std::make_unique<TimedDevice>();
  TimedDevice& events = *timed;
  const auto recorder = std::make_shared<TraceRecorder>();
  std::unique_ptr<Device> device = make_tracing_device(std::move(timed), &kTiming, recorder);
  const auto stream = device->create_stream(StreamKind::kCompute);
  EXPECT_EQ(&innermost(*device), &events);
  EXPECT_NE(&innermost(*stream), stream.get());
  void* const memory = device->allocate(8);
  recorder->start();
  {
    const WatchedWork watched(stream.get(), [] { return WorkLabel{.name = "F0", .category = "schedule"}; });
    stream->fill_zero(memory, 4);
  }
  stream->fill_zero(memory, 4);
  recorder->stop();
  stream->fill_zero(memory, 4);
  // There are two events for each of three spans, and one event that relates the two clocks.
  ASSERT_EQ(events.created.size(), 7U);
  EXPECT_TRUE(recorder->spans().empty());
  for (std::size_t i = 1; i < 5; ++i) events.created[i]->reached = true;
  auto spans = recorder->spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].name, "F0");
  EXPECT_DOUBLE_EQ(spans[0].end - spans[0].begin, 3);
  EXPECT_EQ(spans[1].name, "fill with zeros");
  EXPECT_DOUBLE_EQ(spans[1].end - spans[1].begin, 1);
  EXPECT_DOUBLE_EQ(spans[1].begin - spans[0].begin, 1);
  EXPECT_NEAR(spans[0].begin, TraceRecorder::now() + 1, 60);  // because the clocks were related just before
  for (TimedEvent* event : events.created) event->reached = true;
  EXPECT_EQ(recorder->spans().size(), 3U);
  device->release(memory);
}

TEST(TracingDevice, AFullTraceRecordsNoMoreEvents) {
  const auto recorder = std::make_shared<TraceRecorder>(2);
  const auto device = make_tracing_device(open_device(parse_device("cpu", 1)), nullptr, recorder);
  const auto stream = device->create_stream(StreamKind::kCompute);
  recorder->start();
  void* const memory = device->allocate(64);
  for (int i = 0; i < 5; ++i) stream->fill_zero(memory, 64);
  stream->synchronize();
  EXPECT_TRUE(recorder->full());
  EXPECT_EQ(recorder->spans().size(), 2U);
  device->release(memory);
}

// The trace is written in Chrome's trace format, in microseconds.
TEST(TracingDevice, TheTraceHasChromesFormat) {
  TraceRecorder recorder;
  const int stream = recorder.add_track("compute");
  recorder.add({"Gemm \"x\"", "kernel", stream, 100.5, 100.75});
  recorder.add({"step", "host", TraceRecorder::kHost, 100.25, 101});
  const auto json = nlohmann::json::parse(recorder.chrome_json({.name = "cpu"}));
  std::map<std::string, nlohmann::json> events;
  int tracks = 0;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "X") events[event["name"]] = event;
    tracks += event["name"] == "thread_name" ? 1 : 0;
  }
  EXPECT_EQ(tracks, 2);
  EXPECT_EQ(events["Gemm \"x\""]["ts"], 250000);
  EXPECT_EQ(events["Gemm \"x\""]["dur"], 250000);
  EXPECT_EQ(events["Gemm \"x\""]["tid"], 1);
  EXPECT_EQ(events["step"]["ts"], 0);
}

}  // namespace
}  // namespace primus::turbo
