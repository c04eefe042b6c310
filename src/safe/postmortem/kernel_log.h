// Reads the kernel's log of this machine. Not thread-safe for one CaseFile.
#pragma once

#include <string>

#include "safe/postmortem/evidence.h"

namespace primus::postmortem {

// Returns the kernel's log of this machine if a rank of the run was on it; otherwise "". Runs `dmesg`, which
// is searched in the folders of `path`, separated by colons. If it cannot be read, adds a note.
std::string kernel_log(const std::string& path, CaseFile& into);

}  // namespace primus::postmortem
