// Reads facts about NVIDIA GPUs from nvidia-smi's tables and the driver's files.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "safe/preflight/gpu_facts.h"

namespace primus::preflight::internal {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

using Row = std::map<std::string, std::string>;  // values keyed by field name; unsupported fields are absent

std::string joined(const std::vector<std::string>& fields) {
  return fmt::format("{}", fmt::join(fields, ","));
}

// Returns a table of nvidia-smi: "--query-<what>=<fields>".
std::optional<std::vector<Row>> query(const Machine& machine, const std::string& what,
                                      const std::vector<std::string>& fields,
                                      std::optional<std::chrono::milliseconds> timeout, GpuFacts& facts) {
  const auto text = ask_tool(
      machine, {"nvidia-smi", "--query-" + what + "=" + joined(fields), "--format=csv,noheader,nounits"},
      timeout, facts);
  if (!text) return std::nullopt;
  std::vector<Row> rows;
  for (const std::string& line : lines_of(*text)) {
    const std::vector<std::string> values = split_text(line, ',');
    if (values.size() != fields.size()) continue;  // e.g. "No running processes found"
    Row row;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (!values[i].starts_with('[') && values[i] != "N/A") row[fields[i]] = values[i];
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string text_of(const Row& row, const char* field) {
  const auto found = row.find(field);
  return found == row.end() ? "" : found->second;
}
std::optional<std::int64_t> number_of(const Row& row, const char* field) {
  return leading_number(text_of(row, field));
}
std::optional<double> real_of(const Row& row, const char* field) { return leading_real(text_of(row, field)); }

Gpu* gpu_at(GpuFacts& facts, const Row& row) {
  for (Gpu& gpu : facts.gpus) {
    if (gpu.vendor == Vendor::kNvidia && number_of(row, "index") == gpu.index) return &gpu;
  }
  return nullptr;
}

void read_health(const Row& row, Gpu& gpu) {
  if (const std::string mode = text_of(row, "ecc.mode.current"); !mode.empty()) gpu.ecc = mode == "Enabled";
  gpu.uncorrected_errors = number_of(row, "ecc.errors.uncorrected.volatile.total");
  gpu.corrected_errors = number_of(row, "ecc.errors.corrected.volatile.total");
  gpu.temperature = real_of(row, "temperature.gpu");
  gpu.power_limit = real_of(row, "power.limit");
  gpu.default_power_limit = real_of(row, "power.default_limit");
  gpu.busy = real_of(row, "utilization.gpu");
  gpu.compute_mode = text_of(row, "compute_mode");
  gpu.partition = text_of(row, "mig.mode.current");
  gpu.pages_pending |= text_of(row, "retired_pages.pending") == "Yes";
}

void read_clocks(const Row& row, Gpu& gpu) {
  static const std::pair<const char*, const char*> kReasons[] = {
      {"clocks_throttle_reasons.hw_thermal_slowdown", "thermal slowdown by hardware"},
      {"clocks_throttle_reasons.hw_power_brake_slowdown", "power brake by hardware"},
      {"clocks_throttle_reasons.sw_thermal_slowdown", "thermal slowdown by the driver"},
      {"clocks_throttle_reasons.hw_slowdown", "slowdown by hardware"},
  };
  for (const auto& [field, reason] : kReasons) {
    // The last reason also covers the first two reasons, so the last reason is reported only if no other
    // reason is active.
    if (text_of(row, field) != "Active") continue;
    if (gpu.throttled_by.empty() || std::string_view(reason) != "slowdown by hardware")
      gpu.throttled_by.emplace_back(reason);
  }
  gpu.clock = real_of(row, "clocks.sm");
  gpu.largest_clock = real_of(row, "clocks.max.sm");
  gpu.link_width = number_of(row, "pcie.link.width.current");
  gpu.largest_link_width = number_of(row, "pcie.link.width.max");
}

void read_processes(const Machine& machine, const std::vector<Row>& rows, GpuFacts& facts) {
  for (const Row& row : rows) {
    for (Gpu& gpu : facts.gpus) {
      const auto pid = number_of(row, "pid");
      if (gpu.id != text_of(row, "gpu_uuid") || !pid) continue;
      std::string name = process_name(machine, *pid);
      if (name.empty()) name = Path(text_of(row, "process_name")).filename().string();
      gpu.processes.push_back(
          {.pid = *pid, .name = name, .memory = number_of(row, "used_memory").value_or(0) * kMiB});
    }
  }
}

// Checks the device files that programs open.
void look_for_nodes(const Machine& machine, GpuFacts& facts) {
  std::vector<std::string> needed{"/dev/nvidiactl", "/dev/nvidia-uvm"};
  for (const std::string& bus : machine.list("/proc/driver/nvidia/gpus")) {
    for (const std::string& line :
         lines_of(machine.text("/proc/driver/nvidia/gpus/" + bus + "/information").value_or(""))) {
      if (!line.starts_with("Device Minor:")) continue;
      if (const auto minor = leading_number(line.substr(13)))
        needed.push_back(fmt::format("/dev/nvidia{}", *minor));
    }
  }
  for (const std::string& node : needed) {
    if (!machine.exists(node)) facts.missing_nodes.push_back(node);
  }
}

}  // namespace

void collect_nvidia(const Machine& machine, std::optional<std::chrono::milliseconds> timeout,
                    GpuFacts& facts) {
  const auto version = machine.text("/proc/driver/nvidia/version");
  if (version) {
    // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ..."
    for (const std::string& word : words_of(first_line_of(*version))) {
      if (facts.nvidia_driver.empty() && word.find('.') != std::string::npos && leading_number(word))
        facts.nvidia_driver = word;
    }
    look_for_nodes(machine, facts);
  }
  const bool has_tool = !machine.program("nvidia-smi").empty();
  if (!has_tool) {
    if (facts.nvidia_on_bus > 0 || version) facts.missing_tools.emplace_back("nvidia-smi");
    return;
  }
  if (facts.nvidia_on_bus == 0 && !version) return;  // the tool is installed, but there is no GPU
  const auto rows =
      query(machine, "gpu",
            {"index", "uuid", "name", "pci.bus_id", "driver_version", "memory.total", "memory.used"}, timeout,
            facts);
  if (!rows) return;
  for (const Row& row : *rows) {
    const auto index = number_of(row, "index");
    if (!index) continue;
    Gpu gpu{.vendor = Vendor::kNvidia,
            .index = static_cast<int>(*index),
            .id = text_of(row, "uuid"),
            .name = text_of(row, "name"),
            .bus = text_of(row, "pci.bus_id")};
    if (const auto memory = number_of(row, "memory.total")) gpu.memory = *memory * kMiB;
    if (const auto used = number_of(row, "memory.used")) gpu.memory_used = *used * kMiB;
    if (facts.nvidia_driver.empty()) facts.nvidia_driver = text_of(row, "driver_version");
    facts.gpus.push_back(std::move(gpu));
  }
  // Queries separate tables, because a driver that lacks one field rejects the complete query.
  const auto each = [&](const std::vector<std::string>& fields, void (*read)(const Row&, Gpu&)) {
    for (const Row& row : query(machine, "gpu", fields, timeout, facts).value_or(std::vector<Row>())) {
      if (Gpu* const gpu = gpu_at(facts, row)) read(row, *gpu);
    }
  };
  each({"index", "ecc.mode.current", "ecc.errors.uncorrected.volatile.total",
        "ecc.errors.corrected.volatile.total", "temperature.gpu", "power.limit", "power.default_limit",
        "utilization.gpu", "compute_mode", "mig.mode.current", "retired_pages.pending"},
       read_health);
  each({"index", "clocks_throttle_reasons.hw_slowdown", "clocks_throttle_reasons.hw_thermal_slowdown",
        "clocks_throttle_reasons.hw_power_brake_slowdown", "clocks_throttle_reasons.sw_thermal_slowdown",
        "clocks.sm", "clocks.max.sm", "pcie.link.width.current", "pcie.link.width.max"},
       read_clocks);
  for (const Row& row : query(machine, "remapped-rows",
                              {"gpu_uuid", "remapped_rows.pending", "remapped_rows.failure"}, timeout, facts)
                            .value_or(std::vector<Row>())) {
    for (Gpu& gpu : facts.gpus) {
      if (gpu.id != text_of(row, "gpu_uuid")) continue;
      gpu.pages_pending |= text_of(row, "remapped_rows.pending") == "Yes";
      gpu.remapping_failed |= text_of(row, "remapped_rows.failure") == "Yes";
    }
  }
  const auto processes =
      query(machine, "compute-apps", {"gpu_uuid", "pid", "process_name", "used_memory"}, timeout, facts);
  if (processes) read_processes(machine, *processes, facts);
}

}  // namespace primus::preflight::internal
