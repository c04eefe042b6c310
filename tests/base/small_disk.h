// Mounts a file system of limited size for a test. Only the test's child process sees it.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>

#include "base/temporary_folder.h"

namespace primus::test {

// Runs `checks` in a child process with a folder of `bytes` capacity. Failures in the child fail this test.
// Returns false if the system does not permit mounting (no user namespaces).
inline bool on_small_disk(std::uint64_t bytes, const std::function<void(const Path&)>& checks) {
  constexpr int kRefused = 77;
  const TemporaryFolder folder;
  const std::string user = "0 " + std::to_string(::geteuid()) + " 1",
                    group = "0 " + std::to_string(::getegid()) + " 1";
  const pid_t child = ::fork();
  if (child == 0) {
    // In its own user namespace, an ordinary user may mount.
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ::_exit(kRefused);
    for (const auto& [file, content] :
         {std::pair("setgroups", std::string("deny")), {"uid_map", user}, {"gid_map", group}})
      std::ofstream("/proc/self/" + std::string(file)) << content;
    const std::string size = "size=" + std::to_string(bytes);
    if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, size.c_str()) != 0) ::_exit(kRefused);
    checks(folder.path());
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kRefused) return false;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "see the failures above";
  return true;
}

}  // namespace primus::test
