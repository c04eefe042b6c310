#include "turbo/devices/work_device.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "device/watched.h"

namespace primus::turbo {

WorkMeter::Mark WorkMeter::mark(Stream& stream) {
  Mark event;
  if (free_.empty()) {
    event = timing_.create(device_);
  } else {
    event = std::move(free_.back());
    free_.pop_back();
  }
  stream.record(*event);
  return event;
}

void WorkMeter::begin_step(Stream& compute) {
  // A step that was abandoned has no end.
  if (!steps_.empty() && !steps_.back().update) {
    give_back(steps_.back());
    steps_.pop_back();
  }
  // The host reads results one step late, so at most a few steps are on their way.
  constexpr std::size_t kMost = 8;
  newest();
  measuring_ = skip_ == 0 && steps_.size() < kMost;
  if (skip_ > 0) --skip_;
  depth_ = 0;
  if (!measuring_) return;
  skip_ = pause_;
  steps_.emplace_back();
  steps_.back().begin = mark(compute);
}

void WorkMeter::end_passes(Stream& compute, double data) {
  if (!measuring_) return;
  Step& step = steps_.back();
  step.passes = mark(compute);
  step.waits_in_passes = step.waits.size();
  step.data = data;
}

void WorkMeter::end_update(Stream& compute) {
  if (!measuring_) return;
  steps_.back().update = mark(compute);
  measuring_ = false;
}

void WorkMeter::begin_wait(Stream& compute) {
  if (measuring_ && depth_++ == 0) steps_.back().waits.emplace_back(mark(compute), nullptr);
}

void WorkMeter::end_wait(Stream& compute) {
  if (measuring_ && depth_ > 0 && --depth_ == 0) steps_.back().waits.back().second = mark(compute);
}

std::optional<WorkMeter::Work> WorkMeter::newest() {
  while (!steps_.empty() && steps_.front().update && timing_.reached(*steps_.front().update)) {
    Step& step = steps_.front();
    newest_ = read(step);
    constexpr double kSecondsOfPlace = 3e-6, kShare = 0.0025;
    const double cost = kSecondsOfPlace * static_cast<double>(step.waits.size() + 2);
    const double whole = std::max(timing_.seconds(*step.begin, *step.update), 1e-6);
    pause_ = static_cast<std::int64_t>(std::ceil(cost / (kShare * whole))) - 1;
    give_back(step);
    steps_.pop_front();
  }
  return newest_;
}

WorkMeter::Work WorkMeter::read(const Step& step) const {
  Work work{.passes = timing_.seconds(*step.begin, *step.passes),
            .update = timing_.seconds(*step.passes, *step.update),
            .data = step.data};
  for (std::size_t i = 0; i < step.waits.size(); ++i) {
    const auto& [begin, end] = step.waits[i];
    if (end) (i < step.waits_in_passes ? work.passes : work.update) -= timing_.seconds(*begin, *end);
  }
  work.passes = std::max(work.passes, 0.0);
  work.update = std::max(work.update, 0.0);
  return work;
}

void WorkMeter::give_back(Step& step) {
  const auto back = [&](Mark& event) {
    if (event) free_.push_back(std::move(event));
  };
  back(step.begin);
  back(step.passes);
  back(step.update);
  for (auto& [begin, end] : step.waits) {
    back(begin);
    back(end);
  }
}

namespace {

class WorkStream final : public WatchedStream {
 public:
  WorkStream(std::unique_ptr<Stream> stream, std::shared_ptr<WorkMeter> meter)
      : stream_(std::move(stream)), meter_(std::move(meter)) {}

  void launch(KernelFunction kernel, const void* arguments, std::size_t bytes) override {
    stream_->launch(kernel, arguments, bytes);
  }
  void copy_to_device(void* device, const void* host, std::int64_t bytes) override {
    stream_->copy_to_device(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, std::int64_t bytes) override {
    stream_->copy_to_host(host, device, bytes);
  }
  void copy_on_device(void* to, const void* from, std::int64_t bytes) override {
    stream_->copy_on_device(to, from, bytes);
  }
  void fill_zero(void* device, std::int64_t bytes) override { stream_->fill_zero(device, bytes); }
  void record(Event& event) override { stream_->record(event); }
  void wait(Event& event) override {
    meter_->begin_wait(*stream_);
    stream_->wait(event);
    meter_->end_wait(*stream_);
  }
  void synchronize() override { stream_->synchronize(); }
  void stop_on(const std::atomic<bool>* stop) override { stream_->stop_on(stop); }

  bool watching() const override { return meter_->measuring(); }
  void begin(WorkLabel label) override {
    open_.push_back(std::string_view(label.category) == "communication");
    if (open_.back()) meter_->begin_wait(*stream_);
  }
  void end() override {
    if (open_.back()) meter_->end_wait(*stream_);
    open_.pop_back();
  }
  Stream& below() override { return *stream_; }

 private:
  std::unique_ptr<Stream> stream_;
  std::shared_ptr<WorkMeter> meter_;
  std::vector<bool> open_;  // for each open region, whether it is communication
};

class WorkDevice final : public WatchedDevice {
 public:
  WorkDevice(std::unique_ptr<Device> device, std::shared_ptr<WorkMeter> meter)
      : device_(std::move(device)), meter_(std::move(meter)) {}

  std::string description() const override { return device_->description(); }
  DeviceProperties properties() const override { return device_->properties(); }
  DeviceMemoryUse memory_use() const override { return device_->memory_use(); }
  void* allocate(std::int64_t bytes) override { return device_->allocate(bytes); }
  void release(void* address) noexcept override { device_->release(address); }
  void* allocate_pinned(std::int64_t bytes) override { return device_->allocate_pinned(bytes); }
  void release_pinned(void* address) noexcept override { device_->release_pinned(address); }
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    std::unique_ptr<Stream> stream = device_->create_stream(kind);
    if (kind != StreamKind::kCompute) return stream;
    return std::make_unique<WorkStream>(std::move(stream), meter_);
  }
  std::unique_ptr<Event> create_event() override { return device_->create_event(); }
  const KernelTable& kernels() const override { return device_->kernels(); }
  KernelContext& kernel_context() override { return device_->kernel_context(); }
  std::vector<KernelChoice> choices() const override { return device_->choices(); }
  std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& work) override {
    return device_->capture(innermost(stream), work);
  }
  bool synchronous() const override { return device_->synchronous(); }
  Device& below() override { return *device_; }

 private:
  std::unique_ptr<Device> device_;
  std::shared_ptr<WorkMeter> meter_;  // declared after the device, so that its events are destroyed first
};

}  // namespace

std::unique_ptr<Device> make_work_device(std::unique_ptr<Device> device, std::shared_ptr<WorkMeter> meter) {
  return std::make_unique<WorkDevice>(std::move(device), std::move(meter));
}

}  // namespace primus::turbo
