#include "turbo/devices/tracing_device.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_text.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {
namespace {

// What is open on a stream. Used by the stream's work alone, which runs in its order.
struct Open {
  TraceRecorder* recorder;
  int track;
  double begin = 0;
};

// What a stream runs around a call: the arguments of the marks below.
struct Mark {
  Open* open;
  const char* name;
  const char* category;
};
void mark_begin(KernelContext&, const void* arguments) {
  static_cast<const Mark*>(arguments)->open->begin = TraceRecorder::now();
}
void mark_end(KernelContext&, const void* arguments) {
  const Mark& mark = *static_cast<const Mark*>(arguments);
  mark.open->recorder->add(
      {mark.name, mark.category, mark.open->track, mark.open->begin, TraceRecorder::now()});
}

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

class TracingStream final : public Stream {
 public:
  TracingStream(std::unique_ptr<Stream> stream, TraceRecorder& recorder, StreamKind kind, bool waits,
                const std::map<KernelFunction, std::string>& names)
      : recorder_(recorder),
        names_(names),
        waits_(waits),
        open_{&recorder, recorder.add_track(name_of(kind))},
        stream_(std::move(stream)) {}

  void launch(KernelFunction kernel, const void* arguments, std::size_t bytes) override {
    const auto known = names_.find(kernel);
    around(known == names_.end() ? "other work" : known->second.c_str(), "kernel",
           [&] { stream_->launch(kernel, arguments, bytes); });
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

 private:
  template <class Work>
  void around(const char* name, const char* category, Work work) {
    if (!recorder_.recording()) return work();
    if (waits_) {
      stream_->synchronize();
      const double begin = TraceRecorder::now();
      work();
      stream_->synchronize();
      recorder_.add({name, category, open_.track, begin, TraceRecorder::now()});
      return;
    }
    const Mark mark{&open_, name, category};
    stream_->launch(&mark_begin, &mark, sizeof(mark));
    work();
    stream_->launch(&mark_end, &mark, sizeof(mark));
  }

  TraceRecorder& recorder_;
  const std::map<KernelFunction, std::string>& names_;
  bool waits_;
  Open open_;
  std::unique_ptr<Stream> stream_;  // last: its work uses what stands above until it is gone
};

class TracingDevice final : public Device {
 public:
  TracingDevice(std::unique_ptr<Device> device, std::shared_ptr<TraceRecorder> recorder)
      : device_(std::move(device)),
        recorder_(std::move(recorder)),
        waits_(device_->properties().kind != "cpu") {
    for (std::size_t id = 0; id < static_cast<std::size_t>(KernelId::kCount); ++id) {
      const auto kernel = static_cast<KernelId>(id);
      if (const KernelFunction run = device_->kernels()[kernel].run)
        names_.emplace(run, turbo::name_of(kernel));
    }
  }

  std::string description() const override { return device_->description(); }
  DeviceProperties properties() const override { return device_->properties(); }
  DeviceMemoryUse memory_use() const override { return device_->memory_use(); }
  void* allocate(std::int64_t bytes) override { return device_->allocate(bytes); }
  void release(void* address) noexcept override { device_->release(address); }
  void* allocate_pinned(std::int64_t bytes) override { return device_->allocate_pinned(bytes); }
  void release_pinned(void* address) noexcept override { device_->release_pinned(address); }
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    return std::make_unique<TracingStream>(device_->create_stream(kind), *recorder_, kind, waits_, names_);
  }
  std::unique_ptr<Event> create_event() override { return device_->create_event(); }
  const KernelTable& kernels() const override { return device_->kernels(); }
  KernelContext& kernel_context() override { return device_->kernel_context(); }
  std::vector<KernelChoice> choices() const override { return device_->choices(); }
  // No graphs: what runs inside one could not be told apart.
  bool synchronous() const override { return device_->synchronous(); }

 private:
  std::unique_ptr<Device> device_;
  std::shared_ptr<TraceRecorder> recorder_;
  bool waits_;
  std::map<KernelFunction, std::string> names_;
};

}  // namespace

double TraceRecorder::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int TraceRecorder::add_track(const std::string& name) {
  const std::lock_guard lock(mutex_);
  tracks_.push_back(name);
  return static_cast<int>(tracks_.size()) - 1;
}

void TraceRecorder::add(Span span) {
  const std::lock_guard lock(mutex_);
  spans_.push_back(std::move(span));
}

std::vector<TraceRecorder::Span> TraceRecorder::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

std::string TraceRecorder::chrome_json(const std::string& process) const {
  const std::lock_guard lock(mutex_);
  using Json = nlohmann::ordered_json;
  Json events = Json::array();
  events.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", 0}, {"args", {{"name", process}}}});
  for (std::size_t track = 0; track < tracks_.size(); ++track)
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", 0},
                      {"tid", track},
                      {"args", {{"name", tracks_[track]}}}});
  double first = 0;
  for (const Span& span : spans_) first = first == 0 ? span.begin : std::min(first, span.begin);
  // In microseconds from the first one on: a double of seconds since boot would lose nanoseconds.
  for (const Span& span : spans_) {
    events.push_back({{"ph", "X"},
                      {"name", span.name},
                      {"cat", span.category},
                      {"pid", 0},
                      {"tid", span.track},
                      {"ts", (span.begin - first) * 1e6},
                      {"dur", (span.end - span.begin) * 1e6}});
  }
  return json_text(Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}, -1) + "\n";
}

std::unique_ptr<Device> make_tracing_device(std::unique_ptr<Device> device,
                                            std::shared_ptr<TraceRecorder> recorder) {
  return std::make_unique<TracingDevice>(std::move(device), std::move(recorder));
}

}  // namespace primus::turbo
