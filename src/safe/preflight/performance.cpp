#include "safe/preflight/performance.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/operator_benchmark.h"
#include "device/cpu/cpu_device.h"
#include "safe/preflight/corruption.h"
#include "safe/preflight/guard.h"
#include "turbo/devices/devices.h"

namespace primus::preflight {
namespace {

using Opener = std::function<std::unique_ptr<Device>(const std::string&)>;

std::unique_ptr<Device> open_by_name(const std::string& name) {
  return turbo::open_device(turbo::parse_device(name));
}

// What steps of one device have in common.
struct Steps {
  const std::string device;
  const PerformanceOptions& options;
  NodeReport& report;

  // The answer of `work` on the opened device, within the time; nothing after a failure, which is a finding.
  template <class T>
  std::optional<T> run(const char* check, std::function<T(Device&)> work) {
    Opener open = options.open ? options.open : open_by_name;
    Guarded<T> result = guarded<T>(
        [open, name = device, work = std::move(work)] {
          const std::unique_ptr<Device> opened = open(name);
          return work(*opened);
        },
        options.timeout);
    report.has_stuck_threads |= result.timed_out;
    if (!result.value) {
      add(Verdict::kFail, check,
          {.measured = fmt::format("{}: {}", device, result.problem),
           .wanted = "a result",
           .source = "checks that cannot be made have failed",
           .fix = result.timed_out
                      ? "reset the GPU or reboot the node: its driver does not answer"
                      : "see to what the message names; 'primus device list' shows what can be used"});
    }
    return result.value;
  }

  void add(Verdict verdict, const char* check, Finding finding) {
    finding.check = check;
    finding.category = "performance";
    finding.verdict = verdict;
    finding.where = device;
    report.findings.push_back(std::move(finding));
  }

  // A measurement and the finding that comes from its threshold.
  void judge(const char* check, Measurement measurement, const std::optional<Wanted>& wanted,
             const char* fix) {
    measurement.where = device;
    measurement.wanted = wanted ? wanted->value : 0;
    const std::string measured =
        fmt::format("{}, {}: {:.4g} {}", device, measurement.name, measurement.value, measurement.unit);
    if (!wanted) {
      add(Verdict::kSkip, check, {.measured = measured + ", and no threshold is known for this device"});
    } else {
      const bool good = measurement.value >= wanted->value;
      add(good ? Verdict::kPass : Verdict::kFail, check,
          {.measured = measured,
           .wanted = fmt::format("at least {:.4g} {}", wanted->value, measurement.unit),
           .source = wanted->source,
           .fix = good ? "" : fix});
    }
    report.measurements.push_back(std::move(measurement));
  }
};

std::optional<Wanted> least(const std::optional<Wanted>& chosen, double value,
                            const std::optional<Hardware>& hardware) {
  if (chosen) return chosen;
  if (!hardware || value <= 0) return std::nullopt;
  return Wanted{value, hardware->file};
}

struct Rates {
  BenchmarkReport report;
  DeviceProperties properties;
};

}  // namespace

std::vector<std::string> devices_to_measure(const Machine& machine, std::vector<Finding>& findings,
                                            bool demanded) {
  const GpuFacts bus = gpus_on_bus(machine);
  const std::vector<turbo::DeviceListing> listings = turbo::list_devices();
  std::vector<std::string> names;
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
    if (there == 0) continue;
    findings.push_back(
        {.check = "performance.devices",
         .category = "performance",
         .verdict = installed || demanded ? Verdict::kFail : Verdict::kWarn,
         .measured = fmt::format(
             "primus cannot use the {} GPU{} of this machine: {}", there, there == 1 ? "" : "s",
             installed ? listing->problem : "its plug-in libprimus_" + kind + ".so is not installed"),
         .wanted = "a plug-in that finds them",
         .source = "'primus device list'",
         .fix =
             installed
                 ? "see to what the message names: the driver, its libraries, or the variables that hide GPUs"
                 : "build it with 'scripts/build-gpu.sh " + kind + "', or training takes the CPU"});
  }
  if (names.empty()) names.emplace_back("cpu");
  return names;
}

void measure_device(const std::string& device, const std::vector<Hardware>& table,
                    const PerformanceOptions& options, NodeReport& report) {
  Steps steps{device, options, report};
  const bool cpu = device.starts_with("cpu");
  const DType dtype = cpu ? DType::kF32 : DType::kBF16;

  if (options.products || options.memory) {
    // Forward and both gradients of each size.
    std::vector<GemmCase> cases;
    const std::vector<std::int64_t> sides = cpu ? std::vector<std::int64_t>{256, 512, 1024, 2048}
                                                : std::vector<std::int64_t>{1024, 2048, 4096, 8192, 10240};
    if (!options.quick && options.products)
      for (const std::int64_t side : sides) cases.push_back({side, side, side});
    const double seconds = options.seconds.value_or(options.quick ? 0.2 : 0.5);
    const auto rates = steps.run<Rates>("performance.products", [cases, dtype, seconds](Device& opened) {
      return Rates{benchmark_gemm(opened, cases, {.dtype = dtype, .seconds = seconds}), opened.properties()};
    });
    if (!rates) return;  // a device that fails here has nothing else to show
    const std::optional<Hardware> hardware = find_hardware(table, cpu ? "cpu" : rates->properties.name);
    const std::string type(name_of(dtype));
    if (options.products) {
      for (const BenchmarkResult& result : rates->report.results) {
        const std::string side = result.name.substr(result.name.rfind('x') + 1);
        const std::string role = result.name.substr(0, result.name.rfind(' '));
        report.measurements.push_back({.name = fmt::format("gemm {} {}, {}", type, role, side),
                                       .where = device,
                                       .unit = "TFLOP/s",
                                       .value = result.flops / result.timing.median * 1e-12,
                                       .size = static_cast<double>(std::stoll(side))});
      }
      const double threads = cpu ? cpu::available_cores() : 1;
      steps.judge("performance.products",
                  {.name = "gemm " + type,
                   .unit = "TFLOP/s",
                   .value = rates->report.gemm_ceiling * 1e-12,
                   .compared = true},
                  least(options.least_tflops, hardware ? hardware->least_tflops * threads : 0, hardware),
                  cpu ? "see who else uses the processor (top), and at which clock it runs"
                      : "look for a clock or power limit (nvidia-smi -q -d PERFORMANCE, rocm-smi), heat, or "
                        "another process on the GPU");
    }
    if (options.memory) {
      steps.judge("performance.memory",
                  {.name = "memory copy",
                   .unit = "GB/s",
                   .value = rates->report.copy_ceiling * 1e-9,
                   .compared = true},
                  least(options.least_memory, hardware ? hardware->least_memory : 0, hardware),
                  cpu ? "see who else uses the memory (top), and whether all memory channels have modules"
                      : "look for a clock limit of the memory, heat, or another process on the GPU");
    }
    if (hardware && hardware->memory_gib > 0 && rates->properties.memory > 0) {
      const double gib = static_cast<double>(rates->properties.memory) / (1 << 30);
      const bool good = gib > 0.9 * hardware->memory_gib;
      steps.add(good ? Verdict::kPass : Verdict::kFail, "performance.memory-size",
                {.measured = fmt::format("{} has {:.1f} GiB of memory", device, gib),
                 .wanted = fmt::format("about {:.0f} GiB", hardware->memory_gib),
                 .source = hardware->file,
                 .fix = good ? ""
                             : "look for partitions (MIG, CPX), and reset the GPU: memory that failed may be "
                               "switched off"});
    }
  }

  if (!options.corruption) return;
  const CorruptionOptions scan{.side = cpu ? (options.quick ? 512 : 1024) : (options.quick ? 2048 : 4096),
                               .rounds = options.quick ? 10 : 50};
  const auto scanned = steps.run<CorruptionResult>(
      "performance.corruption", [scan](Device& opened) { return scan_for_corruption(opened, scan); });
  if (!scanned) return;
  if (scanned->wrong > 0) {
    const bool always = scanned->wrong == scanned->rounds;
    steps.add(
        Verdict::kFail, "performance.corruption",
        {.measured = fmt::format("{}: {} of {} exact products were wrong, first in {}", device,
                                 scanned->wrong, scanned->rounds, scanned->first_wrong),
         .wanted = "none",
         .source = "whole-number arithmetic",
         .fix = always ? "drain the node and have the device replaced; if all devices of all nodes show it, "
                         "it is a bug of primus"
                       : "drain the node and have the device replaced: it computes wrongly now and then"});
  } else {
    steps.add(Verdict::kPass, "performance.corruption",
              {.measured =
                   fmt::format("{}: {} products of side {} are exact", device, scanned->rounds, scan.side)});
  }
  report.facts.push_back({"performance", fmt::format("checksum of products of side {}", scan.side),
                          fmt::format("{:08x}", scanned->checksum), Verdict::kFail, device});
}

std::optional<Wanted> least_all_reduce(const std::vector<Hardware>& table,
                                       const std::vector<turbo::DeviceListing>& devices) {
  for (const turbo::DeviceListing& listing : devices) {
    for (const DeviceProperties& properties : listing.devices) {
      if (properties.kind == "cpu") continue;
      const auto hardware = find_hardware(table, properties.name);
      if (hardware && hardware->least_all_reduce > 0)
        return Wanted{hardware->least_all_reduce, hardware->file};
    }
  }
  return std::nullopt;
}

Finding judge_all_reduce(const std::string& what, double rate, const std::optional<Wanted>& least) {
  Finding finding{.check = "performance.all-reduce",
                  .category = "performance",
                  .verdict = Verdict::kSkip,
                  .measured = fmt::format("{}: {:.4g} GB/s", what, rate)};
  if (!least) {
    finding.measured += ", and no threshold is known for these devices";
    return finding;
  }
  const bool good = rate >= least->value;
  finding.verdict = good ? Verdict::kPass : Verdict::kFail;
  finding.wanted = fmt::format("at least {:.4g} GB/s", least->value);
  finding.source = least->source;
  if (!good)
    finding.fix =
        "see whether all GPUs reach each other by NVLink or XGMI (nvidia-smi topo -m, rocm-smi --showtopo), "
        "and NCCL_DEBUG=INFO for what the library chose";
  return finding;
}

}  // namespace primus::preflight
