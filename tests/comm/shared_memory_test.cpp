// Tests the errors of memory that ranks of one host share.
#include "comm/local/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "base/error.h"

namespace primus::comm::local {
namespace {

// Asks for more memory than the limit of file sizes allows. Exits with 0 if the error names this limit.
[[noreturn]] void exceed_the_limit_of_file_sizes() {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{4096, 4096};
  setrlimit(RLIMIT_FSIZE, &limit);
  try {
    create_shared_memory(1 << 20);
  } catch (const Error& error) {
    std::_Exit(std::string(error.hint()).find("ulimit -f") != std::string::npos ? 0 : 1);
  }
  std::_Exit(2);
}

TEST(SharedMemory, TheLimitOfFileSizesIsNamed) {
  EXPECT_EXIT(exceed_the_limit_of_file_sizes(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace primus::comm::local
