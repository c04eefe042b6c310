#include <cstring>
#include <functional>
#include <mutex>
#include <utility>

#include "device/collectives.h"
#include "device/gpu/gpu_context.h"
#include "device/gpu/gpu_device.h"
#include "device/gpu/runtime.h"
#include "device/measuring_device.h"

namespace primus::gpu::PRIMUS_GPU {
namespace {

// The properties of a GPU that a stream's context needs.
struct Properties {
  int index = 0, multiprocessors = 0, major = 0, minor = 0;
  std::int64_t shared_bytes = 0, memory_bytes = 0;
  std::string name;
  int capability() const { return 10 * major + minor; }
};

Properties properties_of(int index) {
  RuntimeProperties raw;
  check(PRIMUS_GPU_CALL(GetDeviceProperties)(&raw, index), "read the properties of a GPU");
  Properties result;
  result.index = index;
  result.multiprocessors = raw.multiProcessorCount;
  result.major = raw.major;
  result.minor = raw.minor;
#if defined(__HIP__)
  result.shared_bytes = static_cast<std::int64_t>(raw.sharedMemPerBlock);
#else
  result.shared_bytes = static_cast<std::int64_t>(raw.sharedMemPerBlockOptin);
#endif
  result.memory_bytes = static_cast<std::int64_t>(raw.totalGlobalMem);
  result.name = raw.name;
  return result;
}

primus::DeviceProperties describe(const Properties& gpu) {
  return {
      .kind = kVendor, .ordinal = gpu.index, .name = gpu.name, .memory = gpu.memory_bytes, .graphs = true};
}

// The check that runs whenever the host has waited for this device (DeviceCollectives::guard). Thread-safe.
class Guard {
 public:
  void set(std::function<void()> check) {
    const std::lock_guard lock(mutex_);
    check_ = std::move(check);
  }
  void check() const {
    std::function<void()> copy;
    {
      const std::lock_guard lock(mutex_);
      copy = check_;
    }
    if (copy) copy();
  }

 private:
  mutable std::mutex mutex_;
  std::function<void()> check_;
};

// If a kernel has reported a fault, clears the fault and throws an error.
void throw_fault(Fault& fault) {
  if (fault.kind != Fault::Kind::kNone) throw to_error(std::exchange(fault, Fault{}));
}

class GpuEvent final : public Event {
 public:
  // If `timed`, the event records the time at which the stream reaches the event.
  GpuEvent(int device, std::shared_ptr<const Guard> guard, bool timed)
      : device_(device), guard_(std::move(guard)) {
    check(PRIMUS_GPU_CALL(SetDevice)(device_), "choose a GPU");
    check(PRIMUS_GPU_CALL(EventCreateWithFlags)(
              &event_, timed ? PRIMUS_GPU_CALL(EventDefault) : PRIMUS_GPU_CALL(EventDisableTiming)),
          "create an event");
  }
  ~GpuEvent() override { (void)PRIMUS_GPU_CALL(EventDestroy)(event_); }
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;

  void synchronize() override {
    check(PRIMUS_GPU_CALL(EventSynchronize)(event_), "wait for an event");
    guard_->check();
    if (fault_) throw_fault(*fault_);
  }
  // Sets the fault memory of the stream that records this event.
  void recorded_by(std::shared_ptr<Fault> fault) { fault_ = std::move(fault); }
  EventHandle handle() const { return event_; }
  double seconds_until(const GpuEvent& later) const {
    float milliseconds = 0;
    check(PRIMUS_GPU_CALL(EventElapsedTime)(&milliseconds, event_, later.event_),
          "read the time of an event");
    return static_cast<double>(milliseconds) * 1e-3;
  }
  bool reached() const {
    const Status status = PRIMUS_GPU_CALL(EventQuery)(event_);
    if (status == PRIMUS_GPU_CALL(ErrorNotReady)) {
      (void)PRIMUS_GPU_CALL(GetLastError)();
      return false;
    }
    check(status, "look whether work is over");
    return true;
  }

 private:
  int device_;
  std::shared_ptr<const Guard> guard_;
  std::shared_ptr<Fault> fault_;
  EventHandle event_ = nullptr;
};

class GpuStream final : public Stream {
 public:
  GpuStream(const Properties& gpu, std::shared_ptr<const Guard> guard, std::shared_ptr<GpuShared> shared,
            StreamKind kind)
      : device_(gpu.index), guard_(std::move(guard)) {
    choose_device();
    // Collectives have a higher priority and get free multiprocessors first, because other ranks wait for
    // collectives.
    int lowest = 0, highest = 0;
    check(PRIMUS_GPU_CALL(DeviceGetStreamPriorityRange)(&lowest, &highest), "read the priorities of streams");
    check(PRIMUS_GPU_CALL(StreamCreateWithPriority)(&stream_, PRIMUS_GPU_CALL(StreamNonBlocking),
                                                    kind == StreamKind::kCommunication ? highest : lowest),
          "create a stream");
    partials_ = malloc(GpuContext::kPartialBytes);
    fault_ = std::shared_ptr<Fault>(new (malloc_pinned(sizeof(Fault))) Fault, free_pinned);
    context_ = std::make_unique<GpuContext>(std::move(shared), stream_, partials_, fault_.get(),
                                            gpu.multiprocessors, gpu.capability(), gpu.shared_bytes);
  }
  ~GpuStream() override {
    (void)PRIMUS_GPU_CALL(SetDevice)(device_);
    (void)PRIMUS_GPU_CALL(StreamSynchronize)(stream_);
    context_.reset();
    free(partials_);
    (void)PRIMUS_GPU_CALL(StreamDestroy)(stream_);
  }
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  void launch(KernelFunction kernel, const void* arguments, std::size_t) override {
    choose_device();
    kernel(*context_, arguments);
  }
  void copy_to_device(void* device, const void* host, std::int64_t bytes) override {
    copy(device, host, bytes, PRIMUS_GPU_CALL(MemcpyHostToDevice));
  }
  void copy_to_host(void* host, const void* device, std::int64_t bytes) override {
    copy(host, device, bytes, PRIMUS_GPU_CALL(MemcpyDeviceToHost));
  }
  void copy_on_device(void* to, const void* from, std::int64_t bytes) override {
    copy(to, from, bytes, PRIMUS_GPU_CALL(MemcpyDeviceToDevice));
  }
  void fill_zero(void* device, std::int64_t bytes) override {
    choose_device();
    check(PRIMUS_GPU_CALL(MemsetAsync)(device, 0, static_cast<std::size_t>(bytes), stream_),
          "clear device memory");
  }
  void record(Event& event) override {
    choose_device();
    auto& recorded = static_cast<GpuEvent&>(event);
    check(PRIMUS_GPU_CALL(EventRecord)(recorded.handle(), stream_), "record an event");
    recorded.recorded_by(fault_);
  }
  void wait(Event& event) override {
    choose_device();
    check(PRIMUS_GPU_CALL(StreamWaitEvent)(stream_, static_cast<GpuEvent&>(event).handle(), 0),
          "wait for an event");
  }
  StreamHandle handle() const { return stream_; }
  void synchronize() override {
    check(PRIMUS_GPU_CALL(StreamSynchronize)(stream_), "finish the work of a stream");
    guard_->check();
    throw_fault(*fault_);
  }

 private:
  // Called before every use of the runtime, because ranks may share a thread and its current device.
  void choose_device() const { check(PRIMUS_GPU_CALL(SetDevice)(device_), "choose a GPU"); }
  template <class Kind>
  void copy(void* to, const void* from, std::int64_t bytes, Kind kind) {
    choose_device();
    check(PRIMUS_GPU_CALL(MemcpyAsync)(to, from, static_cast<std::size_t>(bytes), kind, stream_),
          "copy memory");
  }

  int device_;
  std::shared_ptr<const Guard> guard_;
  StreamHandle stream_ = nullptr;
  void* partials_ = nullptr;
  std::shared_ptr<Fault> fault_;  // shared with events of this stream
  std::unique_ptr<GpuContext> context_;
};

class GpuGraph final : public primus::Graph {
 public:
  // Owns the graph, which was recorded on this GPU.
  GpuGraph(int index, GraphHandle graph) : index_(index), graph_(graph) {
#if defined(__HIP__)
    check(hipGraphInstantiate(&executable_, graph_, nullptr, nullptr, 0), "prepare a graph");
#else
    check(cudaGraphInstantiate(&executable_, graph_, 0), "prepare a graph");
#endif
  }
  ~GpuGraph() override {
    (void)PRIMUS_GPU_CALL(GraphExecDestroy)(executable_);
    (void)PRIMUS_GPU_CALL(GraphDestroy)(graph_);
  }
  GpuGraph(const GpuGraph&) = delete;
  GpuGraph& operator=(const GpuGraph&) = delete;

  void launch(Stream& stream) override {
    check(PRIMUS_GPU_CALL(SetDevice)(index_), "choose a GPU");
    check(PRIMUS_GPU_CALL(GraphLaunch)(executable_, static_cast<GpuStream&>(stream).handle()),
          "start a graph");
  }

 private:
  int index_;
  GraphHandle graph_;
  GraphExecHandle executable_ = nullptr;
};

class GpuDevice final : public Device {
 public:
  GpuDevice(const DeviceSpec& spec, const KernelTable& kernels)
      : gpu_(properties_of(spec.ordinal)),
        kernels_(kernels),
        shared_(std::make_shared<GpuShared>(spec, true, spec.tuning_folder)),
        context_(shared_, nullptr, nullptr, nullptr, gpu_.multiprocessors, gpu_.capability(),
                 gpu_.shared_bytes) {
    check(PRIMUS_GPU_CALL(SetDevice)(gpu_.index), "choose a GPU");
  }

  std::string description() const override {
    return std::string(kVendor) + ":" + std::to_string(gpu_.index) + ": " + gpu_.name + ", " +
           std::to_string(gpu_.multiprocessors) + " multiprocessors, " +
           std::to_string(gpu_.memory_bytes >> 30) + " GiB, compute capability " +
           std::to_string(gpu_.major) + "." + std::to_string(gpu_.minor);
  }
  void* allocate(std::int64_t bytes) override {
    check(PRIMUS_GPU_CALL(SetDevice)(gpu_.index), "choose a GPU");
    // Allocates complete pages. Otherwise small allocations would share a page, and a process cannot map the
    // same page of another process twice (peers.cu).
    constexpr std::int64_t kPage = std::int64_t{2} << 20;
    bytes = (bytes + kPage - 1) / kPage * kPage;
    void* address = malloc(bytes);
    check(PRIMUS_GPU_CALL(Memset)(address, 0, static_cast<std::size_t>(bytes)), "clear device memory");
    // The default stream clears the memory, and other streams do not wait for the default stream. Therefore
    // the host waits here.
    check(PRIMUS_GPU_CALL(DeviceSynchronize)(), "clear device memory");
    return address;
  }
  void release(void* address) noexcept override { free(address); }
  primus::DeviceProperties properties() const override { return describe(gpu_); }
  DeviceMemoryUse memory_use() const override {
    check(PRIMUS_GPU_CALL(SetDevice)(gpu_.index), "choose a GPU");
    std::size_t free_bytes = 0, total = 0;
    check(PRIMUS_GPU_CALL(MemGetInfo)(&free_bytes, &total), "read how much memory is free");
    return {.used = static_cast<std::int64_t>(total - free_bytes), .total = static_cast<std::int64_t>(total)};
  }
  void* allocate_pinned(std::int64_t bytes) override {
    check(PRIMUS_GPU_CALL(SetDevice)(gpu_.index), "choose a GPU");
    return malloc_pinned(bytes);
  }
  void release_pinned(void* address) noexcept override { free_pinned(address); }
  std::unique_ptr<primus::Graph> capture(Stream& stream, const std::function<void()>& work) override {
    check(PRIMUS_GPU_CALL(SetDevice)(gpu_.index), "choose a GPU");
    const StreamHandle handle = static_cast<GpuStream&>(stream).handle();
    check(PRIMUS_GPU_CALL(StreamBeginCapture)(handle, PRIMUS_GPU_CALL(StreamCaptureModeThreadLocal)),
          "begin recording a graph");
    GraphHandle graph = nullptr;
    try {
      work();
    } catch (...) {
      (void)PRIMUS_GPU_CALL(StreamEndCapture)(handle, &graph);
      if (graph) (void)PRIMUS_GPU_CALL(GraphDestroy)(graph);
      throw;
    }
    check(PRIMUS_GPU_CALL(StreamEndCapture)(handle, &graph), "record a graph");
    return std::make_unique<GpuGraph>(gpu_.index, graph);
  }
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    return std::make_unique<GpuStream>(gpu_, guard_, shared_, kind);
  }
  std::unique_ptr<Event> create_event() override {
    return std::make_unique<GpuEvent>(gpu_.index, guard_, false);
  }
  std::unique_ptr<Event> create_timed_event() { return std::make_unique<GpuEvent>(gpu_.index, guard_, true); }
  const KernelTable& kernels() const override { return kernels_; }
  KernelContext& kernel_context() override { return context_; }
  bool synchronous() const override { return false; }
  std::vector<KernelChoice> choices() const override { return shared_->choices(); }
  Guard& guard() { return *guard_; }

 private:
  Properties gpu_;
  const KernelTable& kernels_;
  const std::shared_ptr<GpuShared> shared_;
  GpuContext context_;
  const std::shared_ptr<Guard> guard_ = std::make_shared<Guard>();
};

bool is_recording(Stream& stream) {
  auto status = PRIMUS_GPU_CALL(StreamCaptureStatusNone);
  check(PRIMUS_GPU_CALL(StreamIsCapturing)(static_cast<GpuStream&>(stream).handle(), &status),
        "look whether a stream is recorded");
  return status != PRIMUS_GPU_CALL(StreamCaptureStatusNone);
}

std::string bus_identity(int ordinal) {
  char text[32] = {};
  check(PRIMUS_GPU_CALL(DeviceGetPCIBusId)(text, sizeof(text), ordinal), "read where a GPU is");
  return text;
}

#if defined(__HIP__)
constexpr const char* kCollectivesFiles[] = {"librccl.so.1", "/opt/rocm/lib/librccl.so.1", nullptr};
constexpr const char* kCollectivesLibrary = "RCCL";
constexpr const char* kCollectivesInstallation = "ROCm's package rccl";
#else
constexpr const char* kCollectivesFiles[] = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2", nullptr};
constexpr const char* kCollectivesLibrary = "NCCL";
constexpr const char* kCollectivesInstallation = "NVIDIA's package libnccl2";
#endif

const DeviceCollectives kCollectives{
    .library = kCollectivesLibrary,
    .file_names = kCollectivesFiles,
    .installation = kCollectivesInstallation,
    .stream_handle = [](Stream& stream) -> void* { return static_cast<GpuStream&>(stream).handle(); },
    .recording = is_recording,
    .reached = [](Event& event) { return static_cast<GpuEvent&>(event).reached(); },
    .make_current = [](int ordinal) { check(PRIMUS_GPU_CALL(SetDevice)(ordinal), "choose a GPU"); },
    .identity = bus_identity,
    .guard =
        [](Device& device, std::function<void()> check_work) {
          static_cast<GpuDevice&>(device).guard().set(std::move(check_work));
        },
    .peers = &peers()};

constexpr DeviceTiming kTiming{
    .create = [](Device& device) { return static_cast<GpuDevice&>(device).create_timed_event(); },
    .reached = [](Event& event) { return static_cast<GpuEvent&>(event).reached(); },
    .seconds =
        [](Event& from, Event& to) {
          return static_cast<GpuEvent&>(from).seconds_until(static_cast<GpuEvent&>(to));
        }};

}  // namespace

const DeviceTiming& timing() { return kTiming; }
const DeviceCollectives& collectives() { return kCollectives; }

int device_count(std::string& why) {
  int count = 0;
  const Status status = PRIMUS_GPU_CALL(GetDeviceCount)(&count);
  if (status == PRIMUS_GPU_CALL(Success) && count > 0) return count;
  (void)PRIMUS_GPU_CALL(GetLastError)();
  why = std::string("the ") + kVendorName + " driver shows no GPU (" +
        PRIMUS_GPU_CALL(GetErrorString)(status) + "): check that it is loaded and new enough, and " +
        (std::string(kVendor) == "hip" ? "ROCR_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES");
  return 0;
}

primus::DeviceProperties device_properties(int index) { return describe(properties_of(index)); }

std::unique_ptr<Device> open_gpu(const DeviceSpec& spec, const KernelTable& kernels) {
  return std::make_unique<GpuDevice>(spec, kernels);
}

std::unique_ptr<Device> measuring_gpu(const DeviceSpec& spec, const KernelTable& kernels) {
  // Properties of the tested devices (H100, MI300X). Workspace sizes depend only on these properties.
#if defined(__HIP__)
  constexpr int kMultiprocessors = 304, kMajor = 9;
  constexpr std::int64_t kSharedBytes = 64 << 10;
#else
  constexpr int kMultiprocessors = 132, kMajor = 9;
  constexpr std::int64_t kSharedBytes = 227 << 10;
#endif
  std::string none;
  Properties gpu{.index = spec.ordinal,
                 .multiprocessors = kMultiprocessors,
                 .major = kMajor,
                 .minor = 0,
                 .shared_bytes = kSharedBytes,
                 .memory_bytes = 0,
                 .name = "a GPU that is not here"};
  const bool present = spec.ordinal < device_count(none);
  if (present) gpu = properties_of(spec.ordinal);
  return std::make_unique<MeasuringDevice>(
      describe(gpu), std::string(kVendor) + ": " + gpu.name, kernels,
      std::make_unique<GpuContext>(std::make_shared<GpuShared>(spec, present, std::string()), nullptr,
                                   nullptr, nullptr, gpu.multiprocessors, gpu.capability(),
                                   gpu.shared_bytes));
}

}  // namespace primus::gpu::PRIMUS_GPU
