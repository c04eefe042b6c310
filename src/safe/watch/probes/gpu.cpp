// Watches the rank's GPU: ECC errors, Xid errors, throttling, and the width of its PCIe link.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "safe/watch/probe.h"

namespace primus::watch {
namespace {

// Corrected errors are normal in small numbers; a memory that fails corrects many.
constexpr std::int64_t kManyCorrected = 100;
// A GPU that does not work lowers its clock. Throttling is reported if it lasts for this many looks.
constexpr int kThrottledLooks = 3;

class GpuProbe final : public Probe {
 public:
  explicit GpuProbe(std::unique_ptr<GpuSource> source) : source_(std::move(source)) {}

  void look(double /*now*/, Findings& found) override {
    const GpuReading now = source_->read();
    check_errors(now, found);
    check_throttling(now, found);
    check_link(now, found);
    for (const std::int64_t xid : now.xids) {
      found.warnings.push_back(
          {.detector = "gpu_error",
           .value = static_cast<double>(xid),
           .text = fmt::format("{} reports Xid {}, an error of the driver", now.name, xid),
           .advice = "look up the Xid in NVIDIA's list; if it comes back, drain the node and reset the GPU"});
    }
  }

 private:
  void check_errors(const GpuReading& now, Findings& found) {
    // A reading may fail for a moment, so only successful readings are compared.
    if (now.uncorrected_errors && uncorrected_ && *now.uncorrected_errors > *uncorrected_) {
      const std::int64_t uncorrected = *now.uncorrected_errors, before = *uncorrected_;
      found.warnings.push_back(
          {.detector = "gpu_memory",
           .value = static_cast<double>(uncorrected),
           .usual = static_cast<double>(before),
           .limit = static_cast<double>(before + 1),
           .text = fmt::format("{} has {} new uncorrectable ECC errors", now.name, uncorrected - before),
           .advice = "results since then may be wrong: stop the run, drain the node, and reset the GPU"});
    }
    if (now.uncorrected_errors) uncorrected_ = now.uncorrected_errors;
    if (!first_corrected_) first_corrected_ = now.corrected_errors;
    if (!now.corrected_errors || !first_corrected_) return;
    const std::int64_t corrected = *now.corrected_errors - *first_corrected_;
    if (corrected < kManyCorrected || std::exchange(many_corrected_, true)) return;
    found.warnings.push_back(
        {.detector = "gpu_memory",
         .value = static_cast<double>(corrected),
         .limit = static_cast<double>(kManyCorrected),
         .text = fmt::format("{} has corrected {} ECC errors since the start", now.name, corrected),
         .advice = "results are right, but its memory may fail soon: have the GPU tested after the run"});
  }

  void check_throttling(const GpuReading& now, Findings& found) {
    if (now.throttled_by.empty()) {
      throttled_ = 0;
      return;
    }
    found.set(Symptom::kGpuThrottled);
    if (++throttled_ != kThrottledLooks) return;
    std::string text = fmt::format("{} is throttled: {}", now.name, fmt::join(now.throttled_by, ", "));
    if (now.temperature) text += fmt::format("; {:.0f} C", *now.temperature);
    if (now.clock && now.largest_clock)
      text += fmt::format("; {:.0f} of {:.0f} MHz", *now.clock, *now.largest_clock);
    found.warnings.push_back({.detector = "gpu_throttled",
                              .value = now.clock.value_or(0),
                              .usual = now.largest_clock.value_or(0),
                              .text = std::move(text),
                              .advice = "check the node's cooling and power supply"});
  }

  // A link may be narrow while the GPU is idle, so only a link that becomes narrower is reported.
  void check_link(const GpuReading& now, Findings& found) {
    if (!now.link_width || !now.largest_link_width) return;
    widest_ = std::max(widest_, *now.link_width);
    if (*now.link_width >= widest_) {
      narrow_ = false;
      return;
    }
    found.set(Symptom::kGpuLink);
    if (std::exchange(narrow_, true)) return;
    found.warnings.push_back(
        {.detector = "gpu_link",
         .value = static_cast<double>(*now.link_width),
         .usual = static_cast<double>(widest_),
         .limit = static_cast<double>(widest_),
         .text = fmt::format("the PCIe link of {} has {} lanes instead of {}", now.name, *now.link_width,
                             widest_),
         .advice = "have the GPU's board reseated or replaced; 'primus preflight' measures its transfers"});
  }

  std::unique_ptr<GpuSource> source_;
  std::optional<std::int64_t> first_corrected_;  // of the first reading that has the number
  std::optional<std::int64_t> uncorrected_;
  std::int64_t widest_ = 0;
  int throttled_ = 0;
  bool many_corrected_ = false, narrow_ = false;
};

}  // namespace

extern const ProbeEntry kGpuProbe{"gpu", true, [](const ProbeContext& context) -> std::unique_ptr<Probe> {
                                    auto source =
                                        open_gpu(context.machine, context.place.device_kind,
                                                 context.place.device, context.place.bus, context.nvml);
                                    return source ? std::make_unique<GpuProbe>(std::move(source)) : nullptr;
                                  }};

}  // namespace primus::watch
