// Host memory for this process: installed, free, and limited by control groups. All values are in bytes.
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace primus {

struct HostMemory {
  std::int64_t total = 0;      // installed memory, or the tightest control-group limit
  std::int64_t available = 0;  // allocatable without swapping; file caches count as free
  std::string limited_by;      // folder of the control group that limits the memory, or empty
};

// Reads /proc/meminfo and memory control groups of both versions. Unknown values are zero. `root`: the folder
// of /proc and /sys, for tests.
HostMemory host_memory(const std::string& root = "");

// Returns this process's resident memory; zero if unknown.
std::int64_t resident_bytes();

}  // namespace primus
