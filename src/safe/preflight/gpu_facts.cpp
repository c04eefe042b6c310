#include "safe/preflight/gpu_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/terminal/terminal.h"

namespace primus::preflight {
namespace {

// Base classes of GPUs on the PCI bus: display controllers and processing accelerators.
bool is_gpu_class(const std::string& text) { return text.starts_with("0x03") || text.starts_with("0x12"); }

}  // namespace

GpuFacts gpus_on_bus(const Machine& machine) {
  GpuFacts facts;
  for (const std::string& address : machine.list("/sys/bus/pci/devices")) {
    const std::string folder = "/sys/bus/pci/devices/" + address + "/";
    const std::string vendor = machine.text(folder + "vendor").value_or("");
    const std::string device_class = machine.text(folder + "class").value_or("");
    if (!is_gpu_class(device_class)) continue;
    const bool nvidia = vendor == "0x10de";
    // AMD graphics integrated in CPUs or boards have class 0x0300 and do not count.
    const bool amd =
        vendor == "0x1002" && (device_class.starts_with("0x12") || device_class.starts_with("0x0380") ||
                               device_class.starts_with("0x0302"));
    if (!nvidia && !amd) continue;
    ++(nvidia ? facts.nvidia_on_bus : facts.amd_on_bus);
    const std::string driver = machine.link_name(folder + "driver");
    if (driver != (nvidia ? "nvidia" : "amdgpu")) facts.without_driver.push_back(address);
  }
  return facts;
}

std::string_view name_of(Vendor vendor) { return vendor == Vendor::kNvidia ? "NVIDIA" : "AMD"; }

GpuFacts collect_gpus(const Machine& machine, std::optional<std::chrono::milliseconds> tool_timeout) {
  GpuFacts facts = gpus_on_bus(machine);
  internal::collect_nvidia(machine, tool_timeout, facts);
  internal::collect_amd(machine, tool_timeout, facts);
  return facts;
}

void add_facts(const GpuFacts& gpus, std::vector<Fact>& facts) {
  const auto add = [&](const std::string& name, const std::string& value, Verdict drift) {
    facts.push_back({"gpu", name, value, drift});
  };
  add("GPUs", fmt::format("{}", gpus.gpus.size()), Verdict::kFail);
  if (!gpus.nvidia_driver.empty()) add("NVIDIA driver", gpus.nvidia_driver, Verdict::kFail);
  if (!gpus.amd_driver.empty()) add("amdgpu driver", gpus.amd_driver, Verdict::kFail);
  if (!gpus.rocm.empty()) add("ROCm", gpus.rocm, Verdict::kFail);
  std::map<std::string, int> models;
  for (const Gpu& gpu : gpus.gpus) ++models[gpu.name];
  std::string all;
  for (const auto& [name, count] : models)
    all += fmt::format("{}{} x {}", all.empty() ? "" : ", ", count, name);
  if (!all.empty()) add("products", all, Verdict::kFail);
  for (const Gpu& gpu : gpus.gpus) {
    std::string text = gpu.name;
    if (gpu.memory) text += fmt::format(", {}", human_bytes(static_cast<double>(*gpu.memory)));
    if (gpu.temperature) text += fmt::format(", {:.0f} C", *gpu.temperature);
    if (gpu.clock) text += fmt::format(", {:.0f} MHz", *gpu.clock);
    if (gpu.link_width) text += fmt::format(", PCIe x{}", *gpu.link_width);
    add(fmt::format("gpu {}", gpu.index), text, Verdict::kPass);
  }
}

namespace internal {

std::string process_name(const Machine& machine, std::int64_t pid) {
  return machine.text(fmt::format("/proc/{}/comm", pid)).value_or("");
}

std::optional<std::string> ask_tool(const Machine& machine, const std::vector<std::string>& command,
                                    std::optional<std::chrono::milliseconds> timeout, GpuFacts& facts) {
  const SubprocessResult result = machine.command(command, timeout);
  if (result.found && result.seconds > facts.slowest_tool) {
    facts.slowest_tool = result.seconds;
    facts.tool_of_slowest = command[0];
  }
  if (result.ok()) return result.out;
  std::string why = fmt::format("it exited with code {}", result.exit_code);
  if (!result.found) why = "it is not installed";
  if (result.timed_out) why = fmt::format("no answer within {:.1f} s", result.seconds);
  const std::vector<std::string> said = lines_of(result.out + result.err);
  if (result.found && !result.timed_out && !said.empty()) why += ": " + said.front();
  const std::string problem = fmt::format("{}: {}", command[0], why);
  if (std::find(facts.problems.begin(), facts.problems.end(), problem) == facts.problems.end())
    facts.problems.push_back(problem);
  return std::nullopt;
}

}  // namespace internal
}  // namespace primus::preflight
