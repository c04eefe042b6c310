// A name for a process's files in a folder shared with other processes.
#pragma once

#include <string>

namespace primus {

// Returns e.g. "4711-9f86d081884c7d65": unique to this call among all machines and containers that share a
// file system, where process numbers and host names may repeat.
std::string process_label();

}  // namespace primus
