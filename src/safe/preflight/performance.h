// How fast one device is, and whether it computes rightly: products, memory, the scan for silent corruption.
// Every step has a time limit; what does not end is a failure.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/hardware.h"
#include "device/device.h"
#include "safe/preflight/check.h"

namespace primus::preflight {

using config::Hardware;
using config::read_hardware;

struct PerformanceOptions {
  bool products = true, memory = true, corruption = true;
  bool quick = false;                  // one size, and fewer rounds
  std::optional<double> seconds = {};  // for each measurement; else half a second, or 0.2 where quick
  Requirements wanted = {};            // thresholds in place of the table's
  std::chrono::milliseconds timeout = std::chrono::minutes(3);  // of each step
  // Opens a device by its name; a test's may return one with faults.
  std::function<std::unique_ptr<Device>(const std::string& name)> open = {};
};

// The devices to measure on this machine, by name: all GPUs that there are, else the CPU. Appends to
// `findings` what is wrong where the bus has GPUs that primus cannot use: a failure where their speed or
// their number was `demanded`, or where a driver refuses; else a warning.
std::vector<std::string> devices_to_measure(const Machine& machine, std::vector<Finding>& findings,
                                            bool demanded = false);

// Appends measurements and findings of `device` ("cuda:0", "cpu").
void measure_device(const std::string& device, const std::vector<Hardware>& table,
                    const PerformanceOptions& options, NodeReport& report);

}  // namespace primus::preflight
