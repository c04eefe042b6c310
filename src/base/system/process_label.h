// A name for what a process keeps beside the files of others.
#pragma once

#include <string>

namespace primus {

// "4711-9f86d081884c7d65": of this call alone, among all machines and containers that share a file system.
// There, processes may have the same number, and machines the same name.
std::string process_label();

}  // namespace primus
