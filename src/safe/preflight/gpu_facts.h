// The GPUs of a machine, NVIDIA's and AMD's, as the bus, the drivers and their tools see them. NVIDIA by
// nvidia-smi, AMD by the files of the amdgpu driver; both by /sys/bus/pci. Free functions; thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "safe/preflight/finding.h"
#include "safe/preflight/machine.h"

namespace primus::preflight {

enum class Vendor : std::uint8_t { kNvidia, kAmd };
std::string_view name_of(Vendor vendor);  // "NVIDIA"

struct GpuProcess {
  std::int64_t pid = 0;
  std::string name;         // empty: not known
  std::int64_t memory = 0;  // bytes; 0: not known
};

// Numbers that a driver does not tell are nullopt.
struct Gpu {
  Vendor vendor = Vendor::kNvidia;
  int index = 0;
  std::string id;                                                    // UUID, or the unique id
  std::string name;                                                  // the product
  std::string bus;                                                   // "0000:00:06.0"
  std::optional<std::int64_t> memory, memory_used;                   // bytes
  std::optional<bool> ecc;                                           // switched on
  std::optional<std::int64_t> uncorrected_errors, corrected_errors;  // since the driver was loaded
  std::optional<std::int64_t> retired_pages;                         // AMD
  bool pages_pending = false, remapping_failed = false;              // NVIDIA: until the next reset
  std::vector<std::string> throttled_by;                             // "thermal slowdown"
  std::optional<double> clock, largest_clock;                        // MHz, of the compute units
  std::optional<double> temperature;                                 // Celsius
  std::optional<double> power_limit, default_power_limit;            // W
  std::optional<std::int64_t> link_width, largest_link_width;        // lanes of PCI Express
  std::optional<double> busy;                                        // percent
  std::string compute_mode, partition;                               // "Default"; "Enabled": MIG
  std::vector<GpuProcess> processes;
};

struct GpuFacts {
  std::vector<Gpu> gpus;  // that the drivers show
  // On the bus, driven or not; and those that no driver has taken.
  int nvidia_on_bus = 0, amd_on_bus = 0;
  std::vector<std::string> without_driver;      // bus addresses
  std::vector<std::string> missing_nodes;       // "/dev/nvidia3": what programs need and is not there
  std::string nvidia_driver, amd_driver, rocm;  // versions; empty: not loaded, not installed
  std::vector<std::string> problems;            // of the tools: "nvidia-smi: no answer within 10 s"
  std::vector<std::string> missing_tools;       // of those that the machine's GPUs need
  double slowest_tool = 0;                      // seconds
  std::string tool_of_slowest;
  bool any_on_bus() const { return nvidia_on_bus + amd_on_bus > 0; }
};

// Those on the bus alone, without asking any driver.
GpuFacts gpus_on_bus(const Machine& machine);
GpuFacts collect_gpus(const Machine& machine,
                      std::optional<std::chrono::milliseconds> tool_timeout = std::nullopt);
void add_facts(const GpuFacts& gpus, std::vector<Fact>& facts);

namespace internal {
void collect_nvidia(const Machine& machine, std::optional<std::chrono::milliseconds> timeout,
                    GpuFacts& facts);
void collect_amd(const Machine& machine, std::optional<std::chrono::milliseconds> timeout, GpuFacts& facts);
// The name of a process of this machine; empty where it cannot be seen.
std::string process_name(const Machine& machine, std::int64_t pid);
// Runs a tool of a driver, and notes how long it took and what went wrong; nullopt then.
std::optional<std::string> ask_tool(const Machine& machine, const std::vector<std::string>& command,
                                    std::optional<std::chrono::milliseconds> timeout, GpuFacts& facts);
}  // namespace internal

}  // namespace primus::preflight
