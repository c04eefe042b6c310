// Reads facts about AMD GPUs from files of the amdgpu driver (the kernel's Documentation/gpu/amdgpu) and of
// kfd, the driver's part for compute programs.
#include <fmt/format.h>

#include <algorithm>

#include "safe/preflight/gpu_facts.h"

namespace primus::preflight::internal {
namespace {

// Parses ras/*_err_count: "ue: 3\nce: 0".
void add_errors(const Machine& machine, const std::string& file, Gpu& gpu) {
  for (const std::string& line : lines_of(machine.text(file).value_or(""))) {
    const auto count = line.size() > 3 ? leading_number(line.substr(3)) : std::nullopt;
    if (!count) continue;
    if (line.starts_with("ue:")) gpu.uncorrected_errors = gpu.uncorrected_errors.value_or(0) + *count;
    if (line.starts_with("ce:")) gpu.corrected_errors = gpu.corrected_errors.value_or(0) + *count;
  }
}

// Parses "0: 132Mhz\n1: 2100Mhz *": the supported clocks; '*' marks the current one.
void read_clocks(const std::string& text, Gpu& gpu) {
  for (const std::string& line : lines_of(text)) {
    const std::size_t colon = line.find(':');
    const auto clock = colon == std::string::npos ? std::nullopt : leading_real(line.substr(colon + 1));
    if (!clock) continue;
    if (!gpu.largest_clock || *clock > *gpu.largest_clock) gpu.largest_clock = *clock;
    if (line.find('*') != std::string::npos) gpu.clock = *clock;
  }
}

Gpu read_card(const Machine& machine, const std::string& card) {
  const std::string device = "/sys/class/drm/" + card + "/device/";
  Gpu gpu{.vendor = Vendor::kAmd,
          .id = machine.text(device + "unique_id").value_or(""),
          .name = machine.text(device + "product_name").value_or(""),
          .bus = machine.link_name("/sys/class/drm/" + card + "/device")};
  if (gpu.name.empty()) gpu.name = "AMD GPU " + machine.text(device + "device").value_or("?");
  gpu.memory = machine.number(device + "mem_info_vram_total");
  gpu.memory_used = machine.number(device + "mem_info_vram_used");
  for (const std::string& file : machine.list(device + "ras")) {
    if (file.ends_with("_err_count")) add_errors(machine, device + "ras/" + file, gpu);
  }
  if (const auto pages = machine.text(device + "ras/gpu_vram_bad_pages"))
    gpu.retired_pages = static_cast<std::int64_t>(lines_of(*pages).size());
  read_clocks(machine.text(device + "pp_dpm_sclk").value_or(""), gpu);
  gpu.link_width = machine.number(device + "current_link_width");
  gpu.largest_link_width = machine.number(device + "max_link_width");
  if (const auto busy = machine.number(device + "gpu_busy_percent")) gpu.busy = static_cast<double>(*busy);
  gpu.partition = machine.text(device + "current_compute_partition").value_or("");
  for (const std::string& sensor : machine.list(device + "hwmon")) {
    const std::string folder = device + "hwmon/" + sensor + "/";
    if (const auto t = machine.number(folder + "temp1_input"))
      gpu.temperature = static_cast<double>(*t) / 1e3;
    if (const auto p = machine.number(folder + "power1_cap")) gpu.power_limit = static_cast<double>(*p) / 1e6;
    if (const auto p = machine.number(folder + "power1_cap_default"))
      gpu.default_power_limit = static_cast<double>(*p) / 1e6;
    // The limit is in millidegrees, like the temperature.
    const auto now = machine.number(folder + "temp2_input"), maximum = machine.number(folder + "temp2_crit");
    if (now && maximum && *maximum > 0 && *now >= *maximum)
      gpu.throttled_by.emplace_back("its critical temperature");
  }
  return gpu;
}

// Returns the bus address from a kfd node's properties: "location_id 49920" encodes bus, device and function.
std::string bus_of_node(const Machine& machine, const std::string& node) {
  std::int64_t location = 0, domain = 0;
  for (const std::string& line :
       lines_of(machine.text("/sys/class/kfd/kfd/topology/nodes/" + node + "/properties").value_or(""))) {
    if (line.starts_with("location_id ")) location = leading_number(line.substr(12)).value_or(0);
    if (line.starts_with("domain ")) domain = leading_number(line.substr(7)).value_or(0);
  }
  return fmt::format("{:04x}:{:02x}:{:02x}.{}", domain, location >> 8, (location >> 3) & 31, location & 7);
}

// Reads compute processes. For each process, kfd has a file per GPU, named by kfd's GPU id. The file contains
// the process's memory on this GPU.
void read_processes(const Machine& machine, GpuFacts& facts) {
  for (const std::string& node : machine.list("/sys/class/kfd/kfd/topology/nodes")) {
    const auto id = machine.number("/sys/class/kfd/kfd/topology/nodes/" + node + "/gpu_id");
    if (!id || *id == 0) continue;  // a CPU node
    const std::string bus = bus_of_node(machine, node);
    const auto gpu =
        std::find_if(facts.gpus.begin(), facts.gpus.end(), [&](const Gpu& g) { return g.bus == bus; });
    if (gpu == facts.gpus.end()) continue;
    for (const std::string& pid : machine.list("/sys/class/kfd/kfd/proc")) {
      const auto number = leading_number(pid);
      const auto memory = machine.number(fmt::format("/sys/class/kfd/kfd/proc/{}/vram_{}", pid, *id));
      if (!number || memory.value_or(0) == 0) continue;
      gpu->processes.push_back({.pid = *number, .name = process_name(machine, *number), .memory = *memory});
    }
  }
}

}  // namespace

void collect_amd(const Machine& machine, std::optional<std::chrono::milliseconds> timeout, GpuFacts& facts) {
  const bool loaded = machine.exists("/sys/module/amdgpu");
  if (facts.amd_on_bus == 0) return;  // integrated graphics do not count
  facts.amd_driver = machine.text("/sys/module/amdgpu/version").value_or(loaded ? "of the kernel" : "");
  facts.rocm = machine.text("/opt/rocm/.info/version").value_or("");
  int index = 0;
  for (const std::string& card : machine.list("/sys/class/drm")) {
    // Accept "card0" but not "card0-DP-1".
    if (!card.starts_with("card") || card.find('-') != std::string::npos) continue;
    if (machine.text("/sys/class/drm/" + card + "/device/vendor") != "0x1002") continue;
    if (!machine.exists("/sys/class/drm/" + card + "/device/mem_info_vram_total")) continue;
    Gpu gpu = read_card(machine, card);
    gpu.index = index++;
    facts.gpus.push_back(std::move(gpu));
    const auto nodes = machine.list("/sys/class/drm/" + card + "/device/drm");
    for (const std::string& node : nodes) {
      if (node.starts_with("renderD") && !machine.exists("/dev/dri/" + node))
        facts.missing_nodes.push_back("/dev/dri/" + node);
    }
  }
  if (loaded && !machine.exists("/dev/kfd")) facts.missing_nodes.emplace_back("/dev/kfd");
  read_processes(machine, facts);
  if (machine.program("rocm-smi").empty() && machine.program("amd-smi").empty()) {
    facts.missing_tools.emplace_back("rocm-smi");
    return;
  }
  // Runs the driver's tool to measure its time, because the tool becomes slow before a driver hangs.
  ask_tool(machine,
           {machine.program("rocm-smi").empty() ? "amd-smi" : "rocm-smi",
            machine.program("rocm-smi").empty() ? "version" : "--version"},
           timeout, facts);
}

}  // namespace primus::preflight::internal
