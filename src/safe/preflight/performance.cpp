#include "safe/preflight/performance.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "bench/operator_benchmark.h"
#include "device/cpu/cpu_device.h"
#include "safe/preflight/corruption.h"
#include "safe/preflight/guard.h"
#include "turbo/devices/devices.h"

namespace primus::preflight {

// The GPUs on the PCI bus that no plug-in of this program can use.
struct DriverFacts {
  struct Unusable {
    std::string kind;  // "cuda"
    int count = 0;
    bool installed = false;  // whether the plug-in is installed
    std::string problem;     // error of an installed plug-in
  };
  std::vector<Unusable> unusable;
  bool demanded = false;  // whether the user demanded a speed or a number of GPUs
};

struct Rates {
  BenchmarkReport report;
  DeviceProperties properties;
};

// The measurements of one device.
struct DeviceFacts {
  const std::string& device;
  const PerformanceOptions& options;
  Guarded<Rates> rates = {};              // measured if options.products or options.memory is set
  std::optional<Hardware> hardware = {};  // from the table; nullopt: the table lacks this device
  std::optional<Guarded<CorruptionResult>> scan = {};
  std::int64_t scanned_side = 0;

  bool is_cpu() const { return device.starts_with("cpu"); }
  bool measures_rates() const { return options.products || options.memory; }
  std::optional<Wanted> min_tflops() const {
    const double threads = is_cpu() ? cpu::available_cores() : 1;
    return minimum(options.wanted.min_tflops, hardware ? hardware->min_tflops * threads : 0);
  }
  std::optional<Wanted> min_memory() const {
    return minimum(options.wanted.min_memory, hardware ? hardware->min_memory : 0);
  }
  Measurement tflops() const {
    return speed(fmt::format("gemm {}", name_of(dtype())), "TFLOP/s",
                 rates.value->report.gemm_ceiling * 1e-12, min_tflops());
  }
  Measurement memory_rate() const {
    return speed("memory copy", "GB/s", rates.value->report.copy_ceiling * 1e-9, min_memory());
  }
  DType dtype() const { return is_cpu() ? DType::kF32 : DType::kBF16; }

 private:
  std::optional<Wanted> minimum(const std::optional<Wanted>& chosen, double of_table) const {
    if (chosen) return chosen;
    if (!hardware || of_table <= 0) return std::nullopt;
    return Wanted{of_table, hardware->file};
  }
  Measurement speed(std::string name, const char* unit, double value,
                    const std::optional<Wanted>& wanted) const {
    return {.name = std::move(name),
            .where = device,
            .unit = unit,
            .value = value,
            .wanted = wanted ? wanted->value : 0,
            .compared = true};
  }
};

namespace {

using Opener = std::function<std::unique_ptr<Device>(const std::string&)>;

std::unique_ptr<Device> open_by_name(const std::string& name) {
  return turbo::open_device(turbo::parse_device(name));
}

// Runs `work` on the opened device with the time limit and returns its result.
template <class T>
Guarded<T> on_device(const std::string& device, const PerformanceOptions& options, NodeReport& report,
                     std::function<T(Device&)> work) {
  Opener open = options.open ? options.open : open_by_name;
  Guarded<T> result = guarded<T>(
      [open, name = device, work = std::move(work)] {
        const std::unique_ptr<Device> opened = open(name);
        return work(*opened);
      },
      options.timeout);
  report.has_stuck_threads |= result.timed_out;
  return result;
}

template <class T>
void judge_failure(const std::string& device, const Guarded<T>& result, Judge& judge) {
  judge.fail(
      {.where = device,
       .measured = fmt::format("{}: {}", device, result.problem),
       .wanted = "a result",
       .source = "a check that cannot run counts as failed",
       .fix = result.timed_out
                  ? "reset the GPU or reboot the node: its driver does not answer"
                  : "fix the cause that the message names; 'primus device list' shows the usable devices"});
}

void judge_speed(const Measurement& measurement, const std::optional<Wanted>& wanted, const char* fix,
                 Judge& judge) {
  const std::string& device = measurement.where;
  const std::string measured =
      fmt::format("{}, {}: {:.4g} {}", device, measurement.name, measurement.value, measurement.unit);
  if (!wanted) {
    judge.skip(measured + ", no threshold is known for this device", device);
    return;
  }
  const bool good = measurement.value >= wanted->value;
  judge.say(good ? Verdict::kPass : Verdict::kFail,
            {.where = device,
             .measured = measured,
             .wanted = fmt::format("at least {:.4g} {}", wanted->value, measurement.unit),
             .source = wanted->source,
             .fix = good ? "" : fix});
}

void judge_drivers(const CheckInput& in, Judge& judge) {
  const DriverFacts& facts = in.facts<DriverFacts>();
  for (const DriverFacts::Unusable& gpus : facts.unusable) {
    const bool installed = gpus.installed;
    judge.say(
        installed || facts.demanded ? Verdict::kFail : Verdict::kWarn,
        {.measured = fmt::format(
             "primus cannot use the {} GPU{} of this machine: {}", gpus.count, gpus.count == 1 ? "" : "s",
             installed ? gpus.problem : "its plug-in libprimus_" + gpus.kind + ".so is not installed"),
         .wanted = "a plug-in that finds them",
         .source = "'primus device list'",
         .fix = installed ? "fix the cause that the message names: the driver, its libraries, or the "
                            "variables that hide GPUs"
                          : "build it with 'scripts/build-gpu.sh " + gpus.kind +
                                "'; otherwise training uses the CPU"});
  }
}

void judge_products(const CheckInput& in, Judge& judge) {
  const DeviceFacts& facts = in.facts<DeviceFacts>();
  if (!facts.measures_rates()) return;
  if (!facts.rates.value) {
    judge_failure(facts.device, facts.rates, judge);
  } else if (facts.options.products) {
    judge_speed(facts.tflops(), facts.min_tflops(),
                facts.is_cpu() ? "check which processes use the processor (top), and its clock"
                               : "check for a clock or power limit (nvidia-smi -q -d PERFORMANCE, rocm-smi), "
                                 "heat, or another process on the GPU",
                judge);
  }
}

void judge_memory(const CheckInput& in, Judge& judge) {
  const DeviceFacts& facts = in.facts<DeviceFacts>();
  if (!facts.options.memory || !facts.rates.value) return;  // judge_products reports the failure
  judge_speed(facts.memory_rate(), facts.min_memory(),
              facts.is_cpu()
                  ? "check which processes use the memory (top), and that all memory channels have modules"
                  : "check for a memory clock limit, heat, or another process on the GPU",
              judge);
}

void judge_memory_size(const CheckInput& in, Judge& judge) {
  const DeviceFacts& facts = in.facts<DeviceFacts>();
  const auto& hardware = facts.hardware;
  if (!hardware || hardware->memory_gib <= 0 || facts.rates.value->properties.memory <= 0) return;
  const double gib = static_cast<double>(facts.rates.value->properties.memory) / (1 << 30);
  const bool good = gib > 0.9 * hardware->memory_gib;
  judge.say(good ? Verdict::kPass : Verdict::kFail,
            {.where = facts.device,
             .measured = fmt::format("{} has {:.1f} GiB of memory", facts.device, gib),
             .wanted = fmt::format("about {:.0f} GiB", hardware->memory_gib),
             .source = hardware->file,
             .fix = good ? ""
                         : "check for partitions (MIG, CPX), and reset the GPU: failed memory may be "
                           "switched off"});
}

void judge_corruption(const CheckInput& in, Judge& judge) {
  const DeviceFacts& facts = in.facts<DeviceFacts>();
  if (!facts.scan) return;
  if (!facts.scan->value) {
    judge_failure(facts.device, *facts.scan, judge);
    return;
  }
  const CorruptionResult& scanned = *facts.scan->value;
  if (scanned.wrong == 0) {
    judge.pass({.where = facts.device,
                .measured = fmt::format("{}: {} products of side {} are exact", facts.device, scanned.rounds,
                                        facts.scanned_side)});
    return;
  }
  const bool always = scanned.wrong == scanned.rounds;
  judge.fail(
      {.where = facts.device,
       .measured = fmt::format("{}: {} of {} matrix products were wrong, first in {}", facts.device,
                               scanned.wrong, scanned.rounds, scanned.first_wrong),
       .wanted = "none",
       .source = "whole-number arithmetic",
       .fix = always ? "drain the node and have the device replaced; if all devices of all nodes show it, "
                       "it is a bug of primus"
                     : "drain the node and have the device replaced: it sometimes computes wrong results"});
}

// Measures forward, dgrad and wgrad of each size, and the device's peak rates.
Guarded<Rates> measure_rates(const DeviceFacts& facts, NodeReport& report) {
  const PerformanceOptions& options = facts.options;
  std::vector<GemmCase> cases;
  const std::vector<std::int64_t> sides = facts.is_cpu()
                                              ? std::vector<std::int64_t>{256, 512, 1024, 2048}
                                              : std::vector<std::int64_t>{1024, 2048, 4096, 8192, 10240};
  if (!options.quick && options.products)
    for (const std::int64_t side : sides) cases.push_back({side, side, side});
  const double seconds = options.seconds.value_or(options.quick ? 0.2 : 0.5);
  return on_device<
      Rates>(facts.device, options, report, [cases, dtype = facts.dtype(), seconds](Device& opened) {
    return Rates{benchmark_gemm(opened, cases, {.dtype = dtype, .seconds = seconds}), opened.properties()};
  });
}

void add_measurements(const DeviceFacts& facts, NodeReport& report) {
  if (facts.options.products) {
    const std::string_view type = name_of(facts.dtype());
    for (const BenchmarkResult& result : facts.rates.value->report.results) {
      const std::string side = result.name.substr(result.name.rfind('x') + 1);
      const std::string role = result.name.substr(0, result.name.rfind(' '));
      report.measurements.push_back({.name = fmt::format("gemm {} {}, {}", type, role, side),
                                     .where = facts.device,
                                     .unit = "TFLOP/s",
                                     .value = result.flops / result.timing.median * 1e-12,
                                     .size = static_cast<double>(std::stoll(side))});
    }
    report.measurements.push_back(facts.tflops());
  }
  if (facts.options.memory) report.measurements.push_back(facts.memory_rate());
}

void scan(DeviceFacts& facts, NodeReport& report) {
  const bool quick = facts.options.quick;
  const CorruptionOptions scan{.side = facts.is_cpu() ? (quick ? 512 : 1024) : (quick ? 2048 : 4096),
                               .rounds = quick ? 10 : 50};
  facts.scanned_side = scan.side;
  facts.scan = on_device<CorruptionResult>(facts.device, facts.options, report, [scan](Device& opened) {
    return scan_for_corruption(opened, scan);
  });
  if (!facts.scan->value) return;
  report.facts.push_back({"performance", fmt::format("checksum of products of side {}", scan.side),
                          fmt::format("{:08x}", facts.scan->value->checksum), Verdict::kFail, facts.device});
}

}  // namespace

std::vector<std::string> devices_to_measure(const Machine& machine, std::vector<Finding>& findings,
                                            bool demanded) {
  const GpuFacts bus = gpus_on_bus(machine);
  const std::vector<turbo::DeviceListing> listings = turbo::list_devices();
  std::vector<std::string> names;
  DriverFacts drivers{.demanded = demanded};
  for (const auto& [kind, there] :
       {std::pair(std::string("cuda"), bus.nvidia_on_bus), {"hip", bus.amd_on_bus}}) {
    const auto listing = std::find_if(listings.begin(), listings.end(),
                                      [&](const turbo::DeviceListing& l) { return l.kind == kind; });
    const bool installed = listing != listings.end();
    if (installed) {
      for (const DeviceProperties& device : listing->devices)
        names.push_back(turbo::name_of({.kind = device.kind, .ordinal = device.ordinal}));
      if (!listing->devices.empty()) continue;
    }
    if (there > 0)
      drivers.unusable.push_back({.kind = kind,
                                  .count = there,
                                  .installed = installed,
                                  .problem = installed ? listing->problem : ""});
  }
  judge_group("drivers", drivers, findings);
  if (names.empty()) names.emplace_back("cpu");
  return names;
}

void measure_device(const std::string& device, const std::vector<Hardware>& table,
                    const PerformanceOptions& options, NodeReport& report) {
  DeviceFacts facts{device, options};
  bool works = true;  // false: skips later measurements, because the device has failed
  if (facts.measures_rates()) {
    facts.rates = measure_rates(facts, report);
    works = facts.rates.value.has_value();
    if (works) {
      facts.hardware = find_hardware(table, facts.is_cpu() ? "cpu" : facts.rates.value->properties.name);
      add_measurements(facts, report);
    }
  }
  if (works && options.corruption) scan(facts, report);
  judge_group("device", facts, report.findings);
}

extern const Check kUsableGpus{.name = "performance.devices",
                               .category = "performance",
                               .question = "Can primus use every GPU of the machine?",
                               .judge = judge_drivers,
                               .may_be_silent = true,
                               .group = "drivers"};
extern const Check kDeviceProducts{
    .name = "performance.products",
    .category = "performance",
    .question = "Are matrix products fast enough?",
    .judge = judge_products,
    .threshold = {"--gemm-tflops-min", "T",
                  "with --tier2-perf: minimum of matrix products (default: presets/hardware)",
                  &Requirements::min_tflops, 0, ThresholdOption::About::kDevice},
    .may_be_silent = true,
    .group = "device"};
extern const Check kDeviceMemory{
    .name = "performance.memory",
    .category = "performance",
    .question = "Is the device's memory fast enough?",
    .judge = judge_memory,
    .threshold = {"--hbm-gbs-min", "G",
                  "with --tier2-perf: minimum of memory bandwidth (default: presets/hardware)",
                  &Requirements::min_memory, 1, ThresholdOption::About::kDevice},
    .may_be_silent = true,
    .group = "device"};
extern const Check kDeviceMemorySize{.name = "performance.memory-size",
                                     .category = "performance",
                                     .question = "Does the device have its full memory?",
                                     .judge = judge_memory_size,
                                     .may_be_silent = true,
                                     .group = "device"};
extern const Check kDeviceCorruption{.name = "performance.corruption",
                                     .category = "performance",
                                     .question = "Are the device's results exact?",
                                     .judge = judge_corruption,
                                     .may_be_silent = true,
                                     .group = "device"};

}  // namespace primus::preflight
