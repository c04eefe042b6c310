// This process's command line, to start it again as the ranks of a job.
#pragma once

#include <string>
#include <vector>

namespace primus::cli {

// The program's file, and the arguments as they were given.
std::vector<std::string> own_command();

}  // namespace primus::cli
