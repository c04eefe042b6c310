#include "safe/watch/gpu_reading.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

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

// Compares addresses on the bus, whose letters are upper case in some libraries.
bool is_same_bus(const std::string& a, const std::string& b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

}  // namespace

namespace internal {

std::unique_ptr<GpuSource> open_amd(const std::shared_ptr<const preflight::Machine>& machine,
                                    const std::string& selected, const std::string& bus) {
  preflight::GpuFacts facts;
  facts.amd_on_bus = 1;
  preflight::internal::collect_amd(*machine, std::nullopt, facts);
  for (const preflight::Gpu& gpu : facts.gpus) {
    if (!bus.empty() && is_same_bus(gpu.bus, bus)) return std::make_unique<AmdSource>(machine, gpu.index);
  }
  const auto number = preflight::leading_number(selected);
  for (const preflight::Gpu& gpu : facts.gpus) {
    // ROCR_VISIBLE_DEVICES lists unique ids as "GPU-<hexadecimal number>".
    const bool chosen = number ? gpu.index == *number : !gpu.id.empty() && selected.ends_with(gpu.id);
    if (chosen) return std::make_unique<AmdSource>(machine, gpu.index);
  }
  return nullptr;
}

}  // namespace internal

std::unique_ptr<GpuSource> open_gpu(const std::shared_ptr<const preflight::Machine>& machine,
                                    const std::string& kind, int device, const std::string& bus,
                                    const std::string& nvml) {
  if (kind == "cuda")
    return internal::open_nvidia(selected(*machine, {"CUDA_VISIBLE_DEVICES"}, device), bus, nvml);
  if (kind != "hip") return nullptr;
  // HIP numbers the GPUs that ROCR_VISIBLE_DEVICES leaves.
  const auto in_rocr =
      preflight::leading_number(selected(*machine, {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}, device));
  const std::string number =
      in_rocr ? selected(*machine, {"ROCR_VISIBLE_DEVICES"}, static_cast<int>(*in_rocr)) : "";
  return internal::open_amd(machine, number, bus);
}

}  // namespace primus::watch
