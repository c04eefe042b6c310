// The command line of this process, for starting the same command again as the ranks of a job.
#pragma once

#include <string>
#include <vector>

namespace primus::cli {

// Returns the path of the executable, followed by the arguments as given.
std::vector<std::string> own_command();

}  // namespace primus::cli
