// A name for a process's files in a folder shared with other processes.
#pragma once

#include <string>

namespace primus {

// Returns e.g. "4711-9f86d081884c7d65". Each call returns another text, even in other processes, machines and
// containers that share a file system. A process number with a host name would not suffice: containers may
// have equal ones.
std::string process_label();

}  // namespace primus
