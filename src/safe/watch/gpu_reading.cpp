#include "safe/watch/gpu_reading.h"

#include <fmt/format.h>

#include "safe/preflight/gpu_facts.h"

namespace primus::watch {
namespace {

// Returns the entry of a variable that lists GPUs; without a variable, the number itself.
std::string selected(const preflight::Machine& machine, std::initializer_list<const char*> variables,
                     int device) {
  for (const char* name : variables) {
    const auto list = machine.variable(name);
    if (!list) continue;
    const std::vector<std::string> entries = preflight::split_text(*list, ',');
    return static_cast<std::size_t>(device) < entries.size() ? entries[static_cast<std::size_t>(device)] : "";
  }
  return fmt::format("{}", device);
}

class AmdSource final : public GpuSource {
 public:
  AmdSource(std::shared_ptr<const preflight::Machine> machine, int index)
      : machine_(std::move(machine)), index_(index) {}

  GpuReading read() override {
    preflight::GpuFacts facts;
    facts.amd_on_bus = 1;
    preflight::internal::collect_amd(*machine_, std::nullopt, facts);
    GpuReading reading{.name = fmt::format("gpu {}", index_)};
    for (const preflight::Gpu& gpu : facts.gpus) {
      if (gpu.index != index_) continue;
      reading.uncorrected_errors = gpu.uncorrected_errors;
      reading.corrected_errors = gpu.corrected_errors;
      reading.throttled_by = gpu.throttled_by;
      reading.temperature = gpu.temperature;
      reading.clock = gpu.clock;
      reading.largest_clock = gpu.largest_clock;
      reading.link_width = gpu.link_width;
      reading.largest_link_width = gpu.largest_link_width;
    }
    return reading;
  }

 private:
  std::shared_ptr<const preflight::Machine> machine_;
  int index_;
};

}  // namespace

namespace internal {

std::unique_ptr<GpuSource> open_amd(const std::shared_ptr<const preflight::Machine>& machine, int index) {
  preflight::GpuFacts facts;
  facts.amd_on_bus = 1;
  preflight::internal::collect_amd(*machine, std::nullopt, facts);
  if (index < 0 || static_cast<std::size_t>(index) >= facts.gpus.size()) return nullptr;
  return std::make_unique<AmdSource>(machine, index);
}

}  // namespace internal

std::unique_ptr<GpuSource> open_gpu(const std::shared_ptr<const preflight::Machine>& machine,
                                    const std::string& kind, int device, const std::string& nvml) {
  if (kind == "cuda")
    return internal::open_nvidia(selected(*machine, {"CUDA_VISIBLE_DEVICES"}, device), nvml);
  if (kind != "hip") return nullptr;
  // HIP numbers the GPUs that ROCR_VISIBLE_DEVICES leaves.
  const auto in_rocr =
      preflight::leading_number(selected(*machine, {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}, device));
  if (!in_rocr) return nullptr;
  const auto number =
      preflight::leading_number(selected(*machine, {"ROCR_VISIBLE_DEVICES"}, static_cast<int>(*in_rocr)));
  return number ? internal::open_amd(machine, static_cast<int>(*number)) : nullptr;
}

}  // namespace primus::watch
