#include "device/measuring_device.h"

#include <stdexcept>
#include <utility>

namespace primus {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw std::logic_error(std::string("a measuring device has no ") + what);
}

class NoEvent final : public Event {
 public:
  void synchronize() override {}
};

class NoStream final : public Stream {
 public:
  void launch(KernelFunction, const void*, std::size_t) override { refuse("kernels to run"); }
  void copy_to_device(void*, const void*, std::int64_t) override { refuse("memory to copy to"); }
  void copy_to_host(void*, const void*, std::int64_t) override { refuse("memory to copy from"); }
  void copy_on_device(void*, const void*, std::int64_t) override { refuse("memory to copy"); }
  void fill_zero(void*, std::int64_t) override { refuse("memory to fill"); }
  void record(Event&) override {}
  void wait(Event&) override {}
  void synchronize() override {}
};

}  // namespace

MeasuringDevice::MeasuringDevice(DeviceProperties properties, std::string description,
                                 const KernelTable& kernels, std::unique_ptr<KernelContext> context)
    : properties_(std::move(properties)),
      description_(std::move(description)),
      kernels_(kernels),
      context_(std::move(context)) {}

MeasuringDevice::MeasuringDevice(DeviceProperties properties, std::string description,
                                 const KernelTable& kernels, std::unique_ptr<Device> source)
    : properties_(std::move(properties)),
      description_(std::move(description)),
      source_(std::move(source)),
      kernels_(kernels) {}

void* MeasuringDevice::allocate(std::int64_t) { refuse("memory"); }
void MeasuringDevice::release(void*) noexcept {}
void* MeasuringDevice::allocate_pinned(std::int64_t) { refuse("pinned memory"); }
void MeasuringDevice::release_pinned(void*) noexcept {}
std::unique_ptr<Stream> MeasuringDevice::create_stream(StreamKind) { return std::make_unique<NoStream>(); }
std::unique_ptr<Event> MeasuringDevice::create_event() { return std::make_unique<NoEvent>(); }

}  // namespace primus
