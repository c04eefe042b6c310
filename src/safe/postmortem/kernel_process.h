// Finds out whether a kernel's line about a process concerns the run. A machine may run other jobs of this
// program, whose processes have the same name. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "safe/postmortem/evidence.h"

namespace primus::postmortem {

struct KernelProcess {
  std::string_view name;  // as the kernel records it: at most 15 characters
  std::int64_t pid = 0;
};
// Reads the process from "Killed process 7 (primus)", "oom-kill:...,task=primus,pid=7", "traps: primus[7]"
// and "primus[7]: segfault". Returns nullopt if the line names none.
std::optional<KernelProcess> kernel_process(std::string_view line);

// Host names are compared without their domain. Returns false for an unknown one.
bool same_node(std::string_view a, std::string_view b);

enum class Ownership : std::uint8_t {
  kForeign,   // the process is no rank of the run's last process
  kUnproven,  // nothing shows whose process it is
  kOwn,       // it is a rank of the run, or the line names no process
};
// Returns whose process `one` is about. It is the run's own one if a flight recorder has its number, or if
// the records say that a rank with an unknown number died. It is foreign if it died before the run began, if
// the run ended in order, or if all ranks of its node have known numbers, and none has this one.
Ownership ownership_of(const Evidence& one, const CaseFile& file);

}  // namespace primus::postmortem
