// How much memory the machine has for this process: what is installed, what is free, and what control groups
// allow. Bytes. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace primus {

struct HostMemory {
  std::int64_t total = 0;      // installed, or the tightest limit of a control group
  std::int64_t available = 0;  // can be taken now without swapping; caches of files count as free
  std::string limited_by;      // the control group's folder; empty: the machine itself
};

// What Linux says in /proc/meminfo and memory control groups of both versions. Zero where it says nothing.
// `root`: where /proc and /sys are, for tests.
HostMemory host_memory(const std::string& root = "");

// What this process holds in memory now; zero where Linux does not say.
std::int64_t resident_bytes();

}  // namespace primus
