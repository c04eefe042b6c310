// Reads the kernel's log of this machine. Not thread-safe for one CaseFile.
#pragma once

#include <string>

#include "safe/postmortem/evidence.h"

namespace primus::postmortem {

// Adds the evidence of the kernel's log if a rank of the run was on this machine. Runs `dmesg`, which is
// searched in the folders of `path`, separated by colons. If it cannot be read, adds a note.
void read_kernel_log(const std::string& path, CaseFile& into);

}  // namespace primus::postmortem
