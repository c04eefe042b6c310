#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "base/terminal/terminal.h"
#include "safe/preflight/check.h"

namespace primus::preflight {
namespace {

constexpr double kGiB = 1 << 30;

std::string where_of(const Gpu& gpu) { return fmt::format("gpu {}", gpu.index); }
std::string place_of(const Gpu& gpu) { return fmt::format("gpu {} ({}, {})", gpu.index, gpu.name, gpu.bus); }
std::string bytes(std::int64_t value) { return human_bytes(static_cast<double>(value)); }

constexpr const char* kNoGpu = "no GPU";

// Calls `each` for every GPU; reports a skip if the machine has no GPU.
void for_gpus(const CheckInput& in, Judge& judge, const std::function<void(const Gpu&)>& each) {
  for (const Gpu& gpu : in.found.gpu.gpus) each(gpu);
  if (in.found.gpu.gpus.empty()) judge.skip(kNoGpu);
}

void judge_count(const CheckInput& in, Judge& judge) {
  const GpuFacts& gpu = in.found.gpu;
  const auto shown = static_cast<int>(gpu.gpus.size());
  const int on_bus = gpu.nvidia_on_bus + gpu.amd_on_bus;
  bool good = true;
  if (shown < on_bus) {
    good = false;
    judge.fail({.measured = fmt::format("{} GPUs are on the bus, but the drivers show {}", on_bus, shown),
                .wanted = "all of them",
                .source = "/sys/bus/pci/devices",
                .fix = gpu.without_driver.empty()
                           ? "see dmesg for the GPU that stopped, then reset it or reboot the node"
                           : fmt::format("load the driver (modprobe nvidia, or amdgpu): {} lack one",
                                         fmt::join(gpu.without_driver, ", "))});
  }
  if (const auto& asked = in.wanted.gpus; asked && shown != static_cast<int>(asked->value)) {
    good = false;
    judge.fail({.measured = fmt::format("{} GPUs", shown),
                .wanted = fmt::format("{:.0f}", asked->value),
                .source = asked->source,
                .fix = "see dmesg for a GPU that fell off the bus; in a container, pass all GPUs in (docker "
                       "--gpus=all, or "
                       "--device=/dev/kfd --device=/dev/dri); under Slurm, ask for them (--gpus-per-node)"});
  }
  if (shown > 0 && in.wanted.local_ranks > shown) {
    good = false;
    judge.fail(
        {.measured = fmt::format("{} ranks on this machine, but {} GPUs", in.wanted.local_ranks, shown),
         .wanted = "a GPU for each rank",
         .source = "LOCAL_WORLD_SIZE",
         .fix = "start as many ranks as there are GPUs (--nproc_per_node)"});
  }
  if (!good) return;
  shown == 0 && !in.wanted.gpus ? judge.skip(kNoGpu) : judge.pass(fmt::format("{} GPUs", shown));
}

void judge_tools(const CheckInput& in, Judge& judge) {
  const GpuFacts& gpu = in.found.gpu;
  if (!gpu.any_on_bus()) {
    judge.skip(kNoGpu);
    return;
  }
  for (const std::string& problem : gpu.problems) {
    const bool late = problem.find("no answer") != std::string::npos;
    judge.fail({.measured = problem,
                .wanted = "an answer",
                .source = "a slow tool precedes a hanging driver",
                .fix = late ? "reset the GPUs or reboot the node; dmesg shows what the driver waits for"
                       : problem.find("mismatch") != std::string::npos
                           ? "reboot the node: after an update, the driver's library and kernel module differ"
                           : "follow the message; the tool must match the driver's version"});
  }
  for (const std::string& tool : gpu.missing_tools) {
    judge.warn(
        {.where = tool,
         .measured = fmt::format("{} is not in PATH, so the health of the GPUs cannot be checked", tool),
         .wanted = tool,
         .source = "PATH",
         .fix = tool == "nvidia-smi" ? "install the driver's tools; in a container, set "
                                       "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
                                     : "install ROCm's tools, and add /opt/rocm/bin to PATH"});
  }
  if (!gpu.problems.empty() || !gpu.missing_tools.empty()) return;
  if (gpu.slowest_tool > in.wanted.slow_tool_seconds) {
    judge.warn(
        {.where = gpu.tool_of_slowest,
         .measured = fmt::format("{} took {:.1f} s", gpu.tool_of_slowest, gpu.slowest_tool),
         .wanted = fmt::format("at most {:g} s", in.wanted.slow_tool_seconds),
         .source = "a slow tool precedes a hanging driver",
         .fix = "on NVIDIA, switch persistence on (nvidia-smi -pm 1); if it stays slow, reboot the node"});
  } else {
    judge.pass(fmt::format("{} answered in {:.2f} s", gpu.tool_of_slowest, gpu.slowest_tool));
  }
}

void judge_nodes(const CheckInput& in, Judge& judge) {
  const GpuFacts& gpu = in.found.gpu;
  if (!gpu.any_on_bus() && gpu.gpus.empty()) {
    judge.skip(kNoGpu);
  } else if (!gpu.missing_nodes.empty()) {
    judge.fail({.measured = fmt::format("missing: {}", fmt::join(gpu.missing_nodes, ", ")),
                .wanted = "the device nodes of all GPUs",
                .source = "programs reach GPUs through them",
                .fix = "in a container, pass them in (docker --gpus=all, or --device=/dev/kfd "
                       "--device=/dev/dri); elsewhere "
                       "'nvidia-modprobe -u -c=0', or the driver's udev rules"});
  } else {
    judge.pass("all device nodes exist");
  }
}

void judge_sameness(const CheckInput& in, Judge& judge) {
  std::set<std::string> names;
  std::int64_t minimum = INT64_MAX, maximum = 0;
  for (const Gpu& gpu : in.found.gpu.gpus) {
    names.insert(gpu.name);
    if (!gpu.memory) continue;
    minimum = std::min(minimum, *gpu.memory);
    maximum = std::max(maximum, *gpu.memory);
  }
  if (in.found.gpu.gpus.size() < 2) {
    judge.skip(in.found.gpu.gpus.empty() ? kNoGpu : "one GPU");
  } else if (names.size() > 1) {
    judge.warn({.measured = fmt::format("different GPUs: {}", fmt::join(names, ", ")),
                .wanted = "one product",
                .source = "the slowest GPU slows all others",
                .fix = "choose GPUs of one kind with CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES"});
  } else if (maximum > 0 && static_cast<double>(minimum) < 0.98 * static_cast<double>(maximum)) {
    judge.fail({.measured = fmt::format("GPUs with {} to {} of memory", bytes(minimum), bytes(maximum)),
                .wanted = "equal memory",
                .source = "GPUs of one product have equal memory",
                .fix = "reset the GPU that has less: memory that failed may be switched off; look for "
                       "partitions (MIG, CPX)"});
  } else {
    judge.pass(fmt::format("{} x {}", in.found.gpu.gpus.size(), *names.begin()));
  }
}

void judge_errors(const CheckInput& in, Judge& judge) {
  for_gpus(in, judge, [&](const Gpu& gpu) {
    if (gpu.uncorrected_errors.value_or(0) > 0) {
      judge.fail({.where = where_of(gpu),
                  .measured = fmt::format("{}: {} uncorrectable memory errors", place_of(gpu),
                                          *gpu.uncorrected_errors),
                  .wanted = "none",
                  .source = "counted since the driver was loaded",
                  .fix = "reset the GPU or reboot the node, and have it replaced if the errors come back"});
    } else if (gpu.corrected_errors.value_or(0) > 10'000) {
      judge.warn(
          {.where = where_of(gpu),
           .measured = fmt::format("{}: {} corrected memory errors", place_of(gpu), *gpu.corrected_errors),
           .wanted = "at most 10000",
           .source = "many corrected errors precede a failure",
           .fix = "watch it, and have the GPU replaced if the number grows fast"});
    } else if (gpu.ecc == false) {
      judge.warn({.where = where_of(gpu),
                  .measured = place_of(gpu) + ": memory errors are not corrected (ECC is off)",
                  .wanted = "ECC",
                  .source = "nvidia-smi",
                  .fix = "run 'nvidia-smi -e 1' and reset the GPU"});
    } else if (gpu.uncorrected_errors) {
      judge.pass(fmt::format("no uncorrectable, {} corrected errors", gpu.corrected_errors.value_or(0)), {},
                 where_of(gpu));
    } else {
      judge.skip("the driver does not report error counts", where_of(gpu));
    }
  });
}

void judge_pages(const CheckInput& in, Judge& judge) {
  for_gpus(in, judge, [&](const Gpu& gpu) {
    if (gpu.remapping_failed) {
      judge.fail({.where = where_of(gpu),
                  .measured = place_of(gpu) + ": memory rows failed, and no spare rows are left",
                  .wanted = "none",
                  .source = "nvidia-smi --query-remapped-rows",
                  .fix = "have the GPU replaced"});
    } else if (gpu.pages_pending) {
      judge.fail({.where = where_of(gpu),
                  .measured = place_of(gpu) + ": failed memory stays in use until the next reset",
                  .wanted = "no page or row awaits retirement",
                  .source = "nvidia-smi",
                  .fix = "reset the GPU (nvidia-smi -r) or reboot the node"});
    } else if (gpu.retired_pages.value_or(0) > 64) {
      judge.warn({.where = where_of(gpu),
                  .measured = fmt::format("{}: {} retired pages", place_of(gpu), *gpu.retired_pages),
                  .wanted = "at most 64",
                  .source = "ras/gpu_vram_bad_pages",
                  .fix = "have the GPU replaced if the number grows"});
    } else {
      judge.pass("no memory awaits retirement", {}, where_of(gpu));
    }
  });
}

void judge_throttling(const CheckInput& in, Judge& judge) {
  for_gpus(in, judge, [&](const Gpu& gpu) {
    if (!gpu.throttled_by.empty()) {
      judge.fail({.where = where_of(gpu),
                  .measured = fmt::format("{}: the clock is throttled ({:.0f} of {:.0f} MHz) by {}",
                                          place_of(gpu), gpu.clock.value_or(0), gpu.largest_clock.value_or(0),
                                          fmt::join(gpu.throttled_by, ", ")),
                  .wanted = "its full clock",
                  .source = "the driver's reasons",
                  .fix = "check the node's fans, air flow and power supplies; drain it until it is cool"});
    } else if (gpu.power_limit && gpu.default_power_limit &&
               *gpu.power_limit < 0.95 * *gpu.default_power_limit) {
      judge.warn({.where = where_of(gpu),
                  .measured = fmt::format("{}: limited to {:.0f} W", place_of(gpu), *gpu.power_limit),
                  .wanted = fmt::format("{:.0f} W", *gpu.default_power_limit),
                  .source = "the product's default",
                  .fix = fmt::format("run 'nvidia-smi -i {} -pl {:.0f}', or rocm-smi --resetpoweroverdrive",
                                     gpu.index, *gpu.default_power_limit)});
    } else if (gpu.temperature && *gpu.temperature > 85) {
      judge.warn(
          {.where = where_of(gpu),
           .measured = fmt::format("{}: {:.0f} C before the work begins", place_of(gpu), *gpu.temperature),
           .wanted = "at most 85 C",
           .source = "GPUs throttle a few degrees above",
           .fix = "check the node's fans and air flow, and what runs on the GPU"});
    } else {
      judge.pass(gpu.temperature ? fmt::format("{:.0f} C, not throttled", *gpu.temperature) : "not held down",
                 {}, where_of(gpu));
    }
  });
}

void judge_link(const CheckInput& in, Judge& judge) {
  for_gpus(in, judge, [&](const Gpu& gpu) {
    if (!gpu.link_width || !gpu.largest_link_width || *gpu.largest_link_width == 0) {
      judge.skip("the driver does not report the link width", where_of(gpu));
    } else if (*gpu.link_width < *gpu.largest_link_width) {
      judge.fail({.where = where_of(gpu),
                  .measured = fmt::format("{}: PCI Express with {} lanes", place_of(gpu), *gpu.link_width),
                  .wanted = fmt::format("{} lanes", *gpu.largest_link_width),
                  .source = "the maximum of GPU and slot",
                  .fix = "reseat the card or riser, and check its connector; failed lanes stay off"});
    } else {
      judge.pass(fmt::format("PCI Express x{}", *gpu.link_width), {}, where_of(gpu));
    }
  });
}

void judge_processes(const CheckInput& in, Judge& judge) {
  for_gpus(in, judge, [&](const Gpu& gpu) {
    std::vector<std::string> foreign;
    for (const GpuProcess& process : gpu.processes) {
      const auto& allowed = in.wanted.allowed_processes;
      const std::string name = process.name.empty() ? "N/A" : process.name;
      if (std::find(allowed.begin(), allowed.end(), name) != allowed.end()) continue;
      foreign.push_back(fmt::format("{} (process {}{})", name, process.pid,
                                    process.memory > 0 ? ", " + bytes(process.memory) : ""));
    }
    const std::string fix = "kill the named processes if they are left over, or wait for the other job";
    if (!foreign.empty()) {
      Finding finding{.where = where_of(gpu),
                      .measured = fmt::format("{} is used by {}", place_of(gpu), fmt::join(foreign, ", ")),
                      .wanted = "no other process",
                      .source = "--allowed-procs lists the permitted processes",
                      .fix = fix};
      in.wanted.allow_foreign_processes ? judge.warn(finding) : judge.fail(finding);
    } else {
      judge.pass("no other process", {}, where_of(gpu));
    }
  });
}

void judge_memory(const CheckInput& in, Judge& judge) {
  const Requirements& asked = in.wanted;
  if (in.found.gpu.gpus.empty() && asked.free_gpu_memory_gib) {
    judge.fail({.measured = "no GPU was found, so no free memory can be checked",
                .wanted = fmt::format("{:g} GiB free of each GPU", asked.free_gpu_memory_gib->value),
                .source = asked.free_gpu_memory_gib->source,
                .fix = "'primus doctor' shows why no GPU is found; unset the variable on machines without "
                       "one"});
    return;
  }
  const Wanted busy =
      asked.busy_memory_gib.value_or(Wanted{Requirements::kUsualBusyGib, "the default of node_smoke"});
  const Wanted min_free =
      asked.free_gpu_memory_gib.value_or(Wanted{asked.usual_free_gpu_memory_gib, "Primus's default"});
  for_gpus(in, judge, [&](const Gpu& gpu) {
    if (!gpu.memory || !gpu.memory_used) {
      const char* const silent = "the driver does not report the used memory";
      const Wanted* const demand = asked.free_gpu_memory_gib ? &*asked.free_gpu_memory_gib
                                   : asked.busy_memory_gib   ? &*asked.busy_memory_gib
                                                             : nullptr;
      if (!demand) {
        judge.skip(silent, where_of(gpu));
      } else {
        judge.fail({.where = where_of(gpu),
                    .measured = fmt::format("{}: {}", place_of(gpu), silent),
                    .wanted = "a value to compare with the threshold",
                    .source = demand->source,
                    .fix = "install the driver's tools, or omit the threshold"});
      }
      return;
    }
    const auto used = static_cast<double>(*gpu.memory_used), free = static_cast<double>(*gpu.memory) - used;
    const std::string measured =
        fmt::format("{}: {} of {} used", place_of(gpu), human_bytes(used), bytes(*gpu.memory));
    const std::string fix =
        "find the process that holds it (nvidia-smi, rocm-smi --showpids), or reset the GPU if none does";
    if (used >= busy.value * kGiB) {
      judge.fail({.where = where_of(gpu),
                  .measured = measured,
                  .wanted = fmt::format("less than {:g} GiB", busy.value),
                  .source = busy.source,
                  .fix = fix});
    } else if (free < min_free.value * kGiB) {
      judge.fail({.where = where_of(gpu),
                  .measured = measured,
                  .wanted = fmt::format("{:g} GiB free", min_free.value),
                  .source = min_free.source,
                  .fix = fix});
    } else {
      judge.pass(measured, {}, where_of(gpu));
    }
  });
}

void judge_activity(const CheckInput& in, Judge& judge) {
  const Wanted maximum =
      in.wanted.busy_percent.value_or(Wanted{Requirements::kUsualBusyPercent, "the default of node_smoke"});
  for_gpus(in, judge, [&](const Gpu& gpu) {
    if (!gpu.busy && in.wanted.busy_percent) {
      judge.warn({.where = where_of(gpu),
                  .measured = place_of(gpu) + ": the driver does not report its utilisation",
                  .wanted = fmt::format("at most {:g} %", maximum.value),
                  .source = maximum.source,
                  .fix = "install the driver's tools, or omit the threshold"});
    } else if (!gpu.busy) {
      judge.skip("the driver does not report the utilisation", where_of(gpu));
    } else if (*gpu.busy > maximum.value) {
      judge.warn({.where = where_of(gpu),
                  .measured = fmt::format("{} is {:.0f} % busy", place_of(gpu), *gpu.busy),
                  .wanted = fmt::format("at most {:g} %", maximum.value),
                  .source = maximum.source,
                  .fix = "find the process that uses it (nvidia-smi, rocm-smi --showpids)"});
    } else {
      judge.pass(fmt::format("{:.0f} % busy", *gpu.busy), {}, where_of(gpu));
    }
  });
}

void judge_mode(const CheckInput& in, Judge& judge) {
  for_gpus(in, judge, [&](const Gpu& gpu) {
    if (gpu.compute_mode == "Prohibited") {
      judge.fail({.where = where_of(gpu),
                  .measured = place_of(gpu) + " accepts no programs (compute mode Prohibited)",
                  .wanted = "Default",
                  .source = "nvidia-smi",
                  .fix = fmt::format("run 'nvidia-smi -i {} -c 0'", gpu.index)});
    } else if (gpu.vendor == Vendor::kNvidia && gpu.partition == "Enabled") {
      judge.warn({.where = where_of(gpu),
                  .measured = place_of(gpu) + " is partitioned (MIG is on)",
                  .wanted = "the whole GPU",
                  .source = "nvidia-smi",
                  .fix = fmt::format("run 'nvidia-smi -i {} -mig 0' to use the whole GPU", gpu.index)});
    } else {
      judge.pass(gpu.compute_mode.empty() ? "not divided" : "compute mode " + gpu.compute_mode, {},
                 where_of(gpu));
    }
  });
}

}  // namespace

extern const Check kGpuCount{"gpu.count", "gpu",
                             "Do the drivers show all GPUs on the bus, and the expected number?", judge_count,
                             [](const Requirements& wanted) { return wanted.gpus.has_value(); }};
extern const Check kGpuTools{"gpu.tools", "gpu", "Do the drivers' tools answer quickly?", judge_tools};
extern const Check kGpuDeviceNodes{"gpu.device-nodes", "gpu", "Can programs open the GPUs?", judge_nodes};
extern const Check kGpuSameness{"gpu.sameness", "gpu", "Are all GPUs the same product, with the same memory?",
                                judge_sameness};
extern const Check kGpuMemoryErrors{"gpu.memory-errors", "gpu", "Has GPU memory had uncorrectable errors?",
                                    judge_errors};
extern const Check kGpuRetiredMemory{"gpu.retired-memory", "gpu", "Is failed GPU memory out of use?",
                                     judge_pages};
extern const Check kGpuThrottling{"gpu.throttling", "gpu", "Can the GPUs run at full clock and power?",
                                  judge_throttling};
extern const Check kGpuLinkWidth{"gpu.link-width", "gpu", "Do the GPUs use all PCI Express lanes?",
                                 judge_link};
extern const Check kGpuProcesses{"gpu.processes", "gpu", "Do other processes use the GPUs?", judge_processes};
extern const Check kGpuFreeMemory{
    "gpu.free-memory", "gpu", "Is the GPUs' memory free?", judge_memory,
    [](const Requirements& wanted) { return wanted.free_gpu_memory_gib || wanted.busy_memory_gib; }};
extern const Check kGpuActivity{"gpu.activity", "gpu", "Are the GPUs idle?", judge_activity,
                                [](const Requirements& wanted) { return wanted.busy_percent.has_value(); }};
extern const Check kGpuMode{"gpu.mode", "gpu", "Do programs get complete GPUs (compute mode, MIG)?",
                            judge_mode};

}  // namespace primus::preflight
