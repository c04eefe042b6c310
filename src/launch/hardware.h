// What of a machine a launcher has to know, from its device files and /sys, without any driver library: which
// GPUs there are, where they sit, and the defaults that their kind wants in the environment.
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
  int count = 0;                // those that CUDA_VISIBLE_DEVICES and its like leave
  std::string model;            // "MI300X", "H100"; empty: not known
  std::vector<int> numa_nodes;  // of each; -1: not known
  bool assumed = false;         // of a plan: none is here, and PRIMUS_GPU_MODEL names them

  bool any() const { return count > 0; }
};

// Looks below surroundings.root; PRIMUS_GPU_MODEL says what the model is. Without GPUs here, a plan that is
// only shown gets the GPUs of a host of that model (presets/hardware); otherwise their vendor is set and
// their count stays 0.
Accelerators find_accelerators(const Surroundings& surroundings);

// Variables with the values they get on a node with these GPUs where nobody has set them. For AMD they are
// Primus's, with the InfiniBand devices and the network interface that are found here, and those of
// USING_AINIC=1; without GPUs and without PRIMUS_GPU_MODEL there are none. PRIMUS_DETERMINISTIC=1 wins over
// what was set before.
std::map<std::string, std::string> environment_defaults(const Accelerators& gpus,
                                                        const Surroundings& surroundings);

// What a user wants to know of `defaults`: what was found, what was replaced; and switches of Primus's
// scripts that are set and that nothing here reads. One sentence each.
std::vector<std::string> environment_notes(const std::map<std::string, std::string>& defaults,
                                           const Surroundings& surroundings);

}  // namespace primus::launch
