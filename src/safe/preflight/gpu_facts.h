// The NVIDIA and AMD GPUs of a machine, from the bus, the drivers and their tools. Sources: nvidia-smi for
// NVIDIA GPUs, files of the amdgpu driver for AMD GPUs, and /sys/bus/pci for both. Free functions;
// thread-safe.
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
  std::string name;         // empty: unknown
  std::int64_t memory = 0;  // bytes; 0: unknown
};

// Values that the driver does not report are nullopt.
struct Gpu {
  Vendor vendor = Vendor::kNvidia;
  int index = 0;
  std::string id;                                                    // UUID (NVIDIA) or unique id (AMD)
  std::string name;                                                  // product name
  std::string bus;                                                   // "0000:00:06.0"
  std::optional<std::int64_t> memory, memory_used;                   // bytes
  std::optional<bool> ecc;                                           // whether ECC is enabled
  std::optional<std::int64_t> uncorrected_errors, corrected_errors;  // ECC errors since the driver was loaded
  std::optional<std::int64_t> retired_pages;                         // number of retired memory pages (AMD)
  // NVIDIA: row remapping is pending until the next reset, or has failed
  bool pages_pending = false, remapping_failed = false;
  std::vector<std::string> throttled_by;                       // reasons such as "thermal slowdown"
  std::optional<double> clock, largest_clock;                  // MHz, of the compute units
  std::optional<double> temperature;                           // Celsius
  std::optional<double> power_limit, default_power_limit;      // W
  std::optional<std::int64_t> link_width, largest_link_width;  // PCI Express lanes
  std::optional<double> busy;                                  // percent
  std::string compute_mode, partition;                         // for example "Default"; "Enabled" for
                                                               // MIG
  std::vector<GpuProcess> processes;
};

struct GpuFacts {
  std::vector<Gpu> gpus;  // GPUs that the drivers report
  // Numbers of GPUs on the PCI bus, with or without a driver.
  int nvidia_on_bus = 0, amd_on_bus = 0;
  std::vector<std::string> without_driver;      // bus addresses of GPUs without a driver
  std::vector<std::string> missing_nodes;       // required device files that are missing: "/dev/nvidia3"
  std::string nvidia_driver, amd_driver, rocm;  // versions; empty: not loaded or not installed
  std::vector<std::string> problems;            // problems of tools: "nvidia-smi: no answer within 10 s"
  std::vector<std::string> missing_tools;       // tools that this machine's GPUs need
  double slowest_tool = 0;                      // run time of the slowest tool, in seconds
  std::string tool_of_slowest;
  bool any_on_bus() const { return nvidia_on_bus + amd_on_bus > 0; }
};

// Collects only the facts of the bus, without using a driver.
GpuFacts gpus_on_bus(const Machine& machine);
GpuFacts collect_gpus(const Machine& machine,
                      std::optional<std::chrono::milliseconds> tool_timeout = std::nullopt);
void add_facts(const GpuFacts& gpus, std::vector<Fact>& facts);

namespace internal {
void collect_nvidia(const Machine& machine, std::optional<std::chrono::milliseconds> timeout,
                    GpuFacts& facts);
void collect_amd(const Machine& machine, std::optional<std::chrono::milliseconds> timeout, GpuFacts& facts);
// Returns the name of a process on this machine; empty if the process is not visible.
std::string process_name(const Machine& machine, std::int64_t pid);
// Runs a driver's tool and records its run time and problems. Returns its output; nullopt after a problem.
std::optional<std::string> ask_tool(const Machine& machine, const std::vector<std::string>& command,
                                    std::optional<std::chrono::milliseconds> timeout, GpuFacts& facts);
}  // namespace internal

}  // namespace primus::preflight
