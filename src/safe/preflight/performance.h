// Measures the speed of a device (GEMMs, memory) and scans it for silent data corruption. Every step has a
// time limit; a step that does not end is a failure.
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
  bool quick = false;                  // one size and fewer rounds
  std::optional<double> seconds = {};  // duration of each measurement; default 0.5, or 0.2 if quick
  Requirements wanted = {};            // thresholds that override the table's
  std::chrono::milliseconds timeout = std::chrono::minutes(3);  // time limit of each step
  // Opens a device by its name; tests may return a faulty device.
  std::function<std::unique_ptr<Device>(const std::string& name)> open = {};
};

// Returns the names of the devices to measure: all GPUs, or the CPU if the machine has no GPU. If the bus has
// GPUs that Primus cannot use, appends a finding. The finding is a failure if the user `demanded` a speed or
// number of GPUs, or if a driver refuses; otherwise it is a warning.
std::vector<std::string> devices_to_measure(const Machine& machine, std::vector<Finding>& findings,
                                            bool demanded = false);

// Appends measurements and findings of `device` ("cuda:0", "cpu").
void measure_device(const std::string& device, const std::vector<Hardware>& table,
                    const PerformanceOptions& options, NodeReport& report);

}  // namespace primus::preflight
