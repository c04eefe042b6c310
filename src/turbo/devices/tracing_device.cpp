#include "turbo/devices/tracing_device.h"

#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "device/watched.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {
namespace {

using Span = TraceRecorder::Span;

// The argument of mark_begin() and mark_end(). A stream that can read the clock runs these functions before
// and after a kernel or copy.
struct Mark {
  TraceRecorder* recorder;
  Span* span;
};
void mark_begin(KernelContext&, const void* arguments) {
  const Mark& mark = *static_cast<const Mark*>(arguments);
  mark.recorder->begin(mark.span);
}
void mark_end(KernelContext&, const void* arguments) {
  const Mark& mark = *static_cast<const Mark*>(arguments);
  mark.recorder->end(mark.span);
}

// Records the times of work on a device as events. Events are converted to times when the trace is read.
// Thread-safe.
class EventClock {
 public:
  EventClock(Device& device, const DeviceTiming& timing, TraceRecorder& recorder)
      : device_(device), timing_(timing), recorder_(recorder) {}

  std::shared_ptr<Event> mark(Stream& stream) {
    std::shared_ptr<Event> event;
    {
      const std::lock_guard lock(mutex_);
      if (!base_) set_base(stream);
      event = take();
    }
    stream.record(*event);
    return event;
  }
  void add(Span* span, std::shared_ptr<Event> begin, std::shared_ptr<Event> end) {
    const std::lock_guard lock(mutex_);
    pending_.push_back({span, std::move(begin), std::move(end)});
  }
  void collect() {
    const std::lock_guard lock(mutex_);
    std::erase_if(pending_, [this](Pending& p) {
      if (!timing_.reached(*p.end)) return false;
      recorder_.set_times(p.span, base_time_ + timing_.seconds(*base_, *p.begin),
                          base_time_ + timing_.seconds(*base_, *p.end));
      free_.push_back(std::move(p.begin));
      free_.push_back(std::move(p.end));
      return true;
    });
  }

 private:
  struct Pending {
    Span* span;
    std::shared_ptr<Event> begin, end;
  };

  // Relates the device's clock to the host's clock. The host waits only a short time, because the stream is
  // still empty.
  void set_base(Stream& stream) {
    base_ = timing_.create(device_);
    stream.record(*base_);
    base_->synchronize();
    base_time_ = TraceRecorder::now();
  }
  std::shared_ptr<Event> take() {
    if (free_.empty()) return timing_.create(device_);
    std::shared_ptr<Event> event = std::move(free_.back());
    free_.pop_back();
    return event;
  }

  Device& device_;
  const DeviceTiming& timing_;
  TraceRecorder& recorder_;
  std::mutex mutex_;
  std::shared_ptr<Event> base_;
  double base_time_ = 0;
  std::deque<Pending> pending_;
  std::vector<std::shared_ptr<Event>> free_;
};

const char* name_of(StreamKind kind) {
  switch (kind) {
    case StreamKind::kCompute:
      return "compute";
    case StreamKind::kCopy:
      return "copies";
    default:
      return "communication";
  }
}

class TracingStream final : public WatchedStream {
 public:
  TracingStream(std::unique_ptr<Stream> stream, TraceRecorder& recorder, EventClock* clock, StreamKind kind,
                const std::map<KernelFunction, std::string>& names)
      : recorder_(recorder),
        clock_(clock),
        names_(names),
        track_(recorder.add_track(name_of(kind))),
        stream_(std::move(stream)) {}

  void launch(KernelFunction kernel, const void* arguments, std::size_t bytes) override {
    const auto known = names_.find(kernel);
    // Functions without a name, such as the host's collectives, have no span. The span of the enclosing
    // region includes these functions.
    if (known == names_.end()) return stream_->launch(kernel, arguments, bytes);
    around(known->second.c_str(), "kernel", [&] { stream_->launch(kernel, arguments, bytes); });
  }
  void copy_to_device(void* device, const void* host, std::int64_t bytes) override {
    around("copy to device", "copy", [&] { stream_->copy_to_device(device, host, bytes); });
  }
  void copy_to_host(void* host, const void* device, std::int64_t bytes) override {
    around("copy to host", "copy", [&] { stream_->copy_to_host(host, device, bytes); });
  }
  void copy_on_device(void* to, const void* from, std::int64_t bytes) override {
    around("copy", "copy", [&] { stream_->copy_on_device(to, from, bytes); });
  }
  void fill_zero(void* device, std::int64_t bytes) override {
    around("fill with zeros", "copy", [&] { stream_->fill_zero(device, bytes); });
  }
  void record(Event& event) override { stream_->record(event); }
  void wait(Event& event) override { stream_->wait(event); }
  void synchronize() override { stream_->synchronize(); }
  void stop_on(const std::atomic<bool>* stop) override { stream_->stop_on(stop); }

  bool watching() const override { return recorder_.watching(); }
  void begin(WorkLabel label) override {
    Open open{recorder_.open(std::move(label), track_), {}};
    if (clock_) {
      open.begin = clock_->mark(*stream_);
    } else {
      const Mark mark{&recorder_, open.span};
      stream_->launch(&mark_begin, &mark, sizeof(mark));
    }
    open_.push_back(std::move(open));
  }
  void end() override {
    const Open open = std::move(open_.back());
    open_.pop_back();
    if (clock_) {
      clock_->add(open.span, open.begin, clock_->mark(*stream_));
    } else {
      const Mark mark{&recorder_, open.span};
      stream_->launch(&mark_end, &mark, sizeof(mark));
    }
  }
  Stream& below() override { return *stream_; }

 private:
  struct Open {
    Span* span;
    std::shared_ptr<Event> begin;
  };

  template <class Work>
  void around(const char* name, const char* category, Work work) {
    const WatchedWork watched(this, [&] { return WorkLabel{.name = name, .category = category}; });
    work();
  }

  TraceRecorder& recorder_;
  EventClock* clock_;
  const std::map<KernelFunction, std::string>& names_;
  int track_;
  std::vector<Open> open_;
  std::unique_ptr<Stream> stream_;  // destroyed first, because its pending work uses the members above
};

class TracingDevice final : public WatchedDevice {
 public:
  TracingDevice(std::unique_ptr<Device> device, const DeviceTiming* timing,
                std::shared_ptr<TraceRecorder> recorder)
      : device_(std::move(device)), recorder_(std::move(recorder)) {
    for (std::size_t id = 0; id < static_cast<std::size_t>(KernelId::kCount); ++id) {
      const auto kernel = static_cast<KernelId>(id);
      if (const KernelFunction run = device_->kernels()[kernel].run)
        names_.emplace(run, turbo::name_of(kernel));
    }
    if (!timing) return;
    clock_ = std::make_unique<EventClock>(*device_, *timing, *recorder_);
    recorder_->set_collector([this] { clock_->collect(); });
  }
  ~TracingDevice() override {
    if (!clock_) return;
    try {
      clock_->collect();
    } catch (...) {
      // If the device is lost, the times of its last work are lost, too.
    }
    recorder_->set_collector({});
  }

  std::string description() const override { return device_->description(); }
  // Reports no support for graphs: a graph is launched as a unit, and a trace would not show the kernels of
  // the graph.
  DeviceProperties properties() const override {
    DeviceProperties properties = device_->properties();
    properties.graphs = false;
    return properties;
  }
  DeviceMemoryUse memory_use() const override { return device_->memory_use(); }
  void* allocate(std::int64_t bytes) override { return device_->allocate(bytes); }
  void release(void* address) noexcept override { device_->release(address); }
  void* allocate_pinned(std::int64_t bytes) override { return device_->allocate_pinned(bytes); }
  void release_pinned(void* address) noexcept override { device_->release_pinned(address); }
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    return std::make_unique<TracingStream>(device_->create_stream(kind), *recorder_, clock_.get(), kind,
                                           names_);
  }
  std::unique_ptr<Event> create_event() override { return device_->create_event(); }
  const KernelTable& kernels() const override { return device_->kernels(); }
  KernelContext& kernel_context() override { return device_->kernel_context(); }
  std::vector<KernelChoice> choices() const override { return device_->choices(); }
  bool synchronous() const override { return device_->synchronous(); }
  Device& below() override { return *device_; }

 private:
  std::unique_ptr<Device> device_;
  std::shared_ptr<TraceRecorder> recorder_;
  std::map<KernelFunction, std::string> names_;
  std::unique_ptr<EventClock> clock_;  // declared after the device, so that its events are destroyed first
};

}  // namespace

std::unique_ptr<Device> make_tracing_device(std::unique_ptr<Device> device, const DeviceTiming* timing,
                                            std::shared_ptr<TraceRecorder> recorder) {
  return std::make_unique<TracingDevice>(std::move(device), timing, std::move(recorder));
}

}  // namespace primus::turbo
