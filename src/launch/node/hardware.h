// Machine properties that a launcher needs, from device files and /sys, without driver libraries: the GPUs,
// their NUMA nodes, and default environment variables for their kind.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "launch/plan.h"

namespace primus::launch {

enum class Vendor { kNone, kAmd, kNvidia };
std::string_view vendor_name(Vendor vendor);  // "AMD"

struct Accelerators {
  Vendor vendor = Vendor::kNone;
  int count = 0;                // number of visible GPUs, after CUDA_VISIBLE_DEVICES and similar variables
  std::string model;            // "MI300X", "H100"; empty: not known
  std::vector<int> numa_nodes;  // NUMA node of each GPU; -1: unknown
  bool assumed = false;         // this machine has no GPU; the plan assumes GPUs of PRIMUS_GPU_MODEL

  bool any() const { return count > 0; }
};

// Searches below surroundings.root; PRIMUS_GPU_MODEL overrides the model. On a machine without GPUs, a dry
// run assumes the GPUs of a host with that model (presets/hardware). A real run only sets the vendor and
// leaves the count 0. Throws Error(kInvalid) if a dry run needs a model that is unknown.
Accelerators find_accelerators(const Surroundings& surroundings);

// Returns the default environment variables for a node with these GPUs. AMD GPUs get AMD Primus's defaults,
// including those of USING_AINIC=1, with the InfiniBand devices and the network interface found here. Without
// GPUs and without PRIMUS_GPU_MODEL, returns an empty map. PRIMUS_DETERMINISTIC=1 overrides values that were
// set before.
std::map<std::string, std::string> environment_defaults(const Accelerators& gpus,
                                                        const Surroundings& surroundings);

// Returns notes for the user about `defaults`, one sentence each: values that were found or replaced, and
// switches of AMD Primus's scripts that are set but not used here.
std::vector<std::string> environment_notes(const std::map<std::string, std::string>& defaults,
                                           const Surroundings& surroundings);

}  // namespace primus::launch
