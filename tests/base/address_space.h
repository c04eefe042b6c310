// Limits the address space of a test's child process.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace primus {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kAddressSpaceCanBeLimited = false;  // sanitizers need terabytes
#else
inline constexpr bool kAddressSpaceCanBeLimited = true;
#endif

// Lets the process use at most `bytes` more address space than it has now.
inline void limit_address_space(std::size_t bytes) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limits{};
  limits.rlim_cur = limits.rlim_max = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + bytes;
  if (::setrlimit(RLIMIT_AS, &limits) != 0) std::abort();
}

}  // namespace primus
