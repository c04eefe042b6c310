// Tests step times by the clock of an asynchronous device. The tests include the last step before a pause,
// for which the host waits immediately, and the first step after the pause.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device/forwarding_device.h"
#include "device/timing.h"
#include "engine/parallel/schedule_clock.h"
#include "lm/train/tiny_model.h"
#include "turbo/devices/tracing_device.h"

namespace primus::test {
namespace {

// A clock that advances one second with each operation of the compute stream.
struct WorkClock {
  double enqueued = 0;  // the value of the clock after all enqueued work
  double now = 0;       // used by the device's thread
  int waits = 0;        // waits of the host
};

class ClockedEvent final : public Event {
 public:
  ClockedEvent(std::unique_ptr<Event> inner, WorkClock& clock) : inner_(std::move(inner)), clock_(clock) {}
  void synchronize() override {
    ++clock_.waits;
    inner_->synchronize();
  }
  void record(Stream& stream) {
    const Mark mark{this, ++records_};
    const auto run = [](KernelContext&, const void* argument) {
      const Mark& reached = *static_cast<const Mark*>(argument);
      reached.event->time_ = reached.event->clock_.now;
      reached.event->reached_ = reached.record;
    };
    stream.launch(run, &mark, sizeof(mark));
    stream.record(*inner_);
  }
  Event& inner() { return *inner_; }
  bool reached() const { return records_ > 0 && reached_ == records_; }
  double time() const { return time_; }

 private:
  struct Mark {
    ClockedEvent* event;
    int record;
  };
  std::unique_ptr<Event> inner_;
  WorkClock& clock_;
  int records_ = 0;  // used by the host
  std::atomic<int> reached_ = 0;
  std::atomic<double> time_ = 0;
};

class ClockedStream final : public ForwardingStream {
 public:
  // `counts`: operations on this stream advance the clock.
  ClockedStream(std::unique_ptr<Stream> stream, WorkClock& clock, bool counts)
      : ForwardingStream(std::move(stream)), clock_(clock), counts_(counts) {}
  void launch(KernelFunction kernel, const void* arguments, std::size_t bytes) override {
    below().launch(kernel, arguments, bytes);
    tick();
  }
  void copy_to_device(void* to, const void* from, std::int64_t n) override {
    below().copy_to_device(to, from, n);
    tick();
  }
  void copy_to_host(void* to, const void* from, std::int64_t n) override {
    below().copy_to_host(to, from, n);
    tick();
  }
  void copy_on_device(void* to, const void* from, std::int64_t n) override {
    below().copy_on_device(to, from, n);
    tick();
  }
  void fill_zero(void* to, std::int64_t n) override {
    below().fill_zero(to, n);
    tick();
  }
  void record(Event& event) override { static_cast<ClockedEvent&>(event).record(below()); }
  void wait(Event& event) override { below().wait(static_cast<ClockedEvent&>(event).inner()); }
  void synchronize() override {
    ++clock_.waits;
    below().synchronize();
  }

 private:
  void tick() {
    if (!counts_) return;
    ++clock_.enqueued;
    WorkClock* const clock = &clock_;
    below().launch(
        [](KernelContext&, const void* argument) { ++(*static_cast<WorkClock* const*>(argument))->now; },
        static_cast<const void*>(&clock), sizeof(clock));
  }

  WorkClock& clock_;
  bool counts_;
};

// The guard device with the clock WorkClock. Streams run late, on their own threads.
class ClockedDevice final : public ForwardingDevice {
 public:
  explicit ClockedDevice(WorkClock& clock) : ForwardingDevice(guard_device()), clock_(clock) {}
  std::unique_ptr<Event> create_event() override {
    return std::make_unique<ClockedEvent>(below().create_event(), clock_);
  }
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    return std::make_unique<ClockedStream>(below().create_stream(kind), clock_, kind == StreamKind::kCompute);
  }

 private:
  WorkClock& clock_;
};

constexpr DeviceTiming kTiming{
    // As in GPU plug-ins, the functions assume a device of their own type.
    .create = [](Device& device) { return dynamic_cast<ClockedDevice&>(device).create_event(); },
    .reached = [](Event& event) { return static_cast<ClockedEvent&>(event).reached(); },
    .seconds =
        [](Event& from, Event& to) {
          const auto &begin = static_cast<ClockedEvent&>(from), &end = static_cast<ClockedEvent&>(to);
          EXPECT_TRUE(begin.reached());
          EXPECT_TRUE(end.reached());
          return end.time() - begin.time();
        }};

constexpr int kSteps = 5;  // before each pause
constexpr int kPauses = 2;

struct Measured {
  std::vector<std::optional<double>> reported;
  std::vector<double> expected;
  int waits = 0;  // waits of the host during steps
};

// Measures steps as a run trains: each result is read after the gradients of the next step. The last result
// before a pause is read immediately. During the pause, an evaluation runs. `traced`: with a tracing device.
Measured measure(const DeviceTiming* timing, bool traced) {
  WorkClock clock;
  std::unique_ptr<Device> device = std::make_unique<ClockedDevice>(clock);
  if (traced)
    device = turbo::make_tracing_device(std::move(device), nullptr, std::make_shared<turbo::TraceRecorder>());
  engine::Rank rank(std::move(device));
  const SessionSettings settings = tiny_settings();
  const std::unique_ptr<TrainingSession> session = open_session(rank, settings, builtin_families());
  session->store().initialize(rank.context(), 7);
  TrainingStep& step = session->step();
  step.set_timing(timing);
  const TestBatch batch(settings.step.micro_batch * settings.step.sequence, settings.model.vocab, 1);
  Measured out;
  const auto read = [&] { out.reported.push_back(step.result().seconds); };
  int number = 0;
  for (int pause = 0; pause < kPauses; ++pause) {
    rank.synchronize();
    const int before = clock.waits;
    double from = clock.enqueued;
    for (int s = 0; s < kSteps; ++s) {
      step.begin(++number);
      for (std::int64_t i = 0; i < settings.step.microbatches; ++i) step.microbatch(i, batch);
      step.finish_gradients();
      out.expected.push_back(clock.enqueued - std::exchange(from, clock.enqueued));
      if (s > 0) read();
      step.update(number, 1e-2, 0.1);
    }
    read();
    out.waits += clock.waits - before;
    EXPECT_FALSE(step.result().seconds);  // only the first result() reports it
    step.begin_evaluation();
    step.evaluate(batch);
    step.evaluation_loss();
  }
  return out;
}

TEST(StepSeconds, AreTheDevicesTimeEvenBeforeAPause) {
  const Measured without = measure(nullptr, false);
  EXPECT_EQ(without.reported, std::vector<std::optional<double>>(kSteps * kPauses));
  for (const bool traced : {false, true}) {
    const Measured with = measure(&kTiming, traced);
    ASSERT_EQ(with.reported.size(), with.expected.size());
    for (std::size_t i = 0; i < with.expected.size(); ++i) EXPECT_EQ(with.reported[i], with.expected[i]) << i;
    // The host does not wait more often than without timing.
    EXPECT_EQ(with.waits, kSteps * kPauses);
    EXPECT_EQ(with.waits, without.waits);
  }
}

// Spans have the times of the device, and the host waits only when it reads them.
TEST(ScheduleClock, ReadsTheDevicesTimes) {
  using Kind = engine::ScheduleClock::Kind;
  WorkClock work;
  ClockedDevice device(work);
  const std::unique_ptr<Stream> stream = device.create_stream(StreamKind::kCompute);
  engine::ScheduleClock clock(device, *stream, &kTiming);
  constexpr std::int64_t kBytes = 8;
  const auto release = [&](void* address) { device.release(address); };
  const std::unique_ptr<void, decltype(release)> memory(device.allocate(kBytes), release);
  const auto enqueue = [&](int operations) {
    for (int i = 0; i < operations; ++i) stream->fill_zero(memory.get(), kBytes);
  };
  const auto time = [&](Kind kind, std::int64_t microbatch, int operations) {
    const engine::ScheduleClock::Timed timed(&clock, kind, {.chunk = 1, .microbatch = microbatch});
    enqueue(operations);
  };
  time(Kind::kForward, 0, 2);  // nothing is recorded before start()
  for (int record = 0; record < 2; ++record) {
    clock.start();
    enqueue(1);
    time(Kind::kForward, 3, 2);
    enqueue(1);
    time(Kind::kBackward, 4, 5);
    clock.finish();
    EXPECT_EQ(work.waits, record);
    const engine::ScheduleClock::Times times = clock.read();
    EXPECT_EQ(times.seconds, 9);
    EXPECT_EQ(times.left_out, 0);
    ASSERT_EQ(times.spans.size(), 2U);
    EXPECT_EQ(times.spans[0].begin, 1);
    EXPECT_EQ(times.spans[0].end, 3);
    EXPECT_EQ(times.spans[1].kind, Kind::kBackward);
    EXPECT_EQ(times.spans[1].chunk, 1);
    EXPECT_EQ(times.spans[1].microbatch, 4);
    EXPECT_EQ(times.spans[1].begin, 4);
    EXPECT_EQ(times.spans[1].end, 9);
  }
}

TEST(ScheduleClock, LimitsARecord) {
  const std::unique_ptr<Device> device = guard_device();
  const std::unique_ptr<Stream> stream = device->create_stream(StreamKind::kCompute);
  engine::ScheduleClock clock(*device, *stream, nullptr);
  clock.start();
  for (std::size_t i = 0; i < engine::ScheduleClock::kMaxSpans + 3; ++i) {
    const engine::ScheduleClock::Timed timed(&clock, engine::ScheduleClock::Kind::kForward, {});
  }
  clock.finish();
  const engine::ScheduleClock::Times times = clock.read();
  EXPECT_EQ(times.spans.size(), engine::ScheduleClock::kMaxSpans);
  EXPECT_EQ(times.left_out, 3);
  for (std::size_t i = 1; i < times.spans.size(); ++i)
    EXPECT_LE(times.spans[i - 1].end, times.spans[i].begin);
}

}  // namespace
}  // namespace primus::test
