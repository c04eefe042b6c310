// Reads an NVIDIA GPU through the driver's library (NVML), which is opened at run time. The declarations are
// our own; NVIDIA's "NVML API Reference Guide" documents the functions.
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <type_traits>

#include "safe/watch/gpu_reading.h"

namespace primus::watch::internal {
namespace {

using Device = void*;
using EventSet = void*;
constexpr int kSuccess = 0;
constexpr unsigned long long kXidEvents = 8;

struct EventData {
  Device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

// The functions of the library. A function that an old library lacks is null, and its value is not read.
class Library {
 public:
  explicit Library(const std::string& file) : handle_(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) return;
    load("nvmlInit_v2", init);
    load("nvmlShutdown", shutdown);
    load("nvmlDeviceGetHandleByIndex_v2", by_index);
    load("nvmlDeviceGetHandleByUUID", by_uuid);
    load("nvmlDeviceGetHandleByPciBusId_v2", by_bus);
    load("nvmlDeviceGetIndex", index_of);
    load("nvmlDeviceGetTotalEccErrors", ecc_errors);
    load("nvmlDeviceGetTemperature", temperature);
    load("nvmlDeviceGetClockInfo", clock);
    load("nvmlDeviceGetMaxClockInfo", largest_clock);
    load("nvmlDeviceGetCurrentClocksThrottleReasons", throttle_reasons);
    load("nvmlDeviceGetCurrPcieLinkWidth", link_width);
    load("nvmlDeviceGetMaxPcieLinkWidth", largest_link_width);
    load("nvmlEventSetCreate", create_events);
    load("nvmlEventSetFree", free_events);
    load("nvmlDeviceRegisterEvents", register_events);
    load("nvmlEventSetWait_v2", wait);
  }
  ~Library() {
    if (handle_) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_index)(unsigned, Device*) = nullptr;
  int (*by_uuid)(const char*, Device*) = nullptr;
  int (*by_bus)(const char*, Device*) = nullptr;
  int (*index_of)(Device, unsigned*) = nullptr;
  int (*ecc_errors)(Device, int kind, int counter, unsigned long long*) = nullptr;
  int (*temperature)(Device, int sensor, unsigned*) = nullptr;
  int (*clock)(Device, int kind, unsigned*) = nullptr;
  int (*largest_clock)(Device, int kind, unsigned*) = nullptr;
  int (*throttle_reasons)(Device, unsigned long long*) = nullptr;
  int (*link_width)(Device, unsigned*) = nullptr;
  int (*largest_link_width)(Device, unsigned*) = nullptr;
  int (*create_events)(EventSet*) = nullptr;
  int (*free_events)(EventSet) = nullptr;
  int (*register_events)(Device, unsigned long long, EventSet) = nullptr;
  int (*wait)(EventSet, EventData*, unsigned milliseconds) = nullptr;

 private:
  template <class Function>
  void load(const char* name, Function& function) {
    function = reinterpret_cast<std::remove_reference_t<Function>>(dlsym(handle_, name));
  }
  void* handle_;
};

class NvidiaSource final : public GpuSource {
 public:
  explicit NvidiaSource(std::unique_ptr<Library> library) : library_(std::move(library)) {}
  ~NvidiaSource() override {
    if (events_ && library_->free_events) library_->free_events(events_);
    if (open_ && library_->shutdown) library_->shutdown();
  }
  NvidiaSource(const NvidiaSource&) = delete;
  NvidiaSource& operator=(const NvidiaSource&) = delete;

  bool open(const std::string& selected, const std::string& bus) {
    if (!library_->init || library_->init() != kSuccess) return false;
    open_ = true;
    if (!find(selected, bus)) return false;
    if (library_->create_events && library_->register_events && library_->wait &&
        library_->create_events(&events_) == kSuccess &&
        library_->register_events(device_, kXidEvents, events_) != kSuccess && library_->free_events) {
      library_->free_events(events_);
      events_ = nullptr;
    }
    return true;
  }

  GpuReading read() override {
    GpuReading reading{.name = name_};
    constexpr int kCorrected = 0, kUncorrected = 1, kVolatile = 0, kCore = 0, kMultiprocessors = 1;
    const auto errors = [&](int kind) -> std::optional<std::int64_t> {
      unsigned long long count = 0;
      if (!library_->ecc_errors || library_->ecc_errors(device_, kind, kVolatile, &count) != kSuccess)
        return std::nullopt;
      return static_cast<std::int64_t>(count);
    };
    reading.corrected_errors = errors(kCorrected);
    reading.uncorrected_errors = errors(kUncorrected);
    unsigned value = 0;
    if (library_->temperature && library_->temperature(device_, kCore, &value) == kSuccess)
      reading.temperature = value;
    if (library_->clock && library_->clock(device_, kMultiprocessors, &value) == kSuccess)
      reading.clock = value;
    if (library_->largest_clock && library_->largest_clock(device_, kMultiprocessors, &value) == kSuccess)
      reading.largest_clock = value;
    if (library_->link_width && library_->link_width(device_, &value) == kSuccess) reading.link_width = value;
    if (library_->largest_link_width && library_->largest_link_width(device_, &value) == kSuccess)
      reading.largest_link_width = value;
    read_throttling(reading);
    read_events(reading);
    return reading;
  }

 private:
  bool find(const std::string& selected, const std::string& bus) {
    if (!bus.empty() && library_->by_bus && library_->by_bus(bus.c_str(), &device_) == kSuccess) {
      // nvidia-smi shows this number.
      unsigned number = 0;
      name_ = library_->index_of && library_->index_of(device_, &number) == kSuccess
                  ? fmt::format("gpu {}", number)
                  : "gpu " + bus;
      return true;
    }
    name_ = "gpu " + selected;
    const auto index = preflight::leading_number(selected);
    if (index)
      return library_->by_index && library_->by_index(static_cast<unsigned>(*index), &device_) == kSuccess;
    return !selected.empty() && library_->by_uuid &&
           library_->by_uuid(selected.c_str(), &device_) == kSuccess;
  }

  void read_throttling(GpuReading& reading) const {
    static constexpr std::array<std::pair<unsigned long long, const char*>, 4> kReasons = {
        {{0x40, "thermal slowdown by hardware"},
         {0x80, "power brake by hardware"},
         {0x20, "thermal slowdown by the driver"},
         {0x08, "slowdown by hardware"}}};
    unsigned long long reasons = 0;
    if (!library_->throttle_reasons || library_->throttle_reasons(device_, &reasons) != kSuccess) return;
    for (const auto& [bit, text] : kReasons) {
      // The last reason also covers the first two.
      const bool covered = bit == 0x08 && !reading.throttled_by.empty();
      if ((reasons & bit) != 0 && !covered) reading.throttled_by.emplace_back(text);
    }
  }

  void read_events(GpuReading& reading) const {
    if (!events_) return;
    constexpr int kMost = 100;
    EventData event{};
    for (int i = 0; i < kMost && library_->wait(events_, &event, 0) == kSuccess; ++i) {
      if (event.type == kXidEvents) reading.xids.push_back(static_cast<std::int64_t>(event.data));
    }
  }

  std::unique_ptr<Library> library_;
  std::string name_;
  Device device_ = nullptr;
  EventSet events_ = nullptr;
  bool open_ = false;
};

}  // namespace

std::unique_ptr<GpuSource> open_nvidia(const std::string& selected, const std::string& bus,
                                       const std::string& nvml) {
  auto source = std::make_unique<NvidiaSource>(std::make_unique<Library>(nvml));
  return source->open(selected, bus) ? std::move(source) : nullptr;
}

}  // namespace primus::watch::internal
