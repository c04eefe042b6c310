// Tests of running other programs: output, time limits, and errors.
#include "base/system/subprocess.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "base/temporary_folder.h"

namespace primus {
namespace {

using namespace std::chrono_literals;

SubprocessResult shell(const std::string& script, SubprocessOptions options = {}) {
  options.path = "/usr/bin:/bin";
  return run_subprocess({"sh", "-c", script}, options);
}

TEST(Subprocess, CapturesOutputsAndExitCode) {
  const SubprocessResult result = shell("echo out; echo err >&2; cat; exit 3");
  EXPECT_TRUE(result.found);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "out\n");
  EXPECT_EQ(result.err, "err\n");
  EXPECT_FALSE(result.ok());
  EXPECT_TRUE(shell("true").ok());
  EXPECT_EQ(shell("kill -TERM $$").exit_code, 128 + SIGTERM);
}

TEST(Subprocess, TheProgramReadsTheInput) {
  EXPECT_EQ(shell("cat; cat", {.input = "a\nb"}).out, "a\nb");
  EXPECT_EQ(shell("cat", {.input = std::string(SubprocessOptions::kMaxInputBytes, 'x')}).out.size(),
            SubprocessOptions::kMaxInputBytes);
  // A program that ends without reading its input does not stop this process.
  EXPECT_TRUE(shell("true", {.input = "a"}).ok());
}

TEST(Subprocess, AnUnprivilegedProgramDoesNotRunAsRoot) {
  const SubprocessResult result = shell("id -u", {.unprivileged = true});
  EXPECT_EQ(result.out, ::geteuid() == 0 ? "65534\n" : std::to_string(::geteuid()) + "\n");
}

TEST(Subprocess, KillsAHangingProgramWithItsChildren) {
  const test::TemporaryFolder folder;
  const std::string file = (folder.path() / "pid").string();
  const SubprocessResult result = shell("sleep 100 & echo $! > " + file + "; wait", {.timeout = 300ms});
  EXPECT_TRUE(result.timed_out);
  EXPECT_FALSE(result.ok());
  EXPECT_LT(result.seconds, 5);
  pid_t child = 0;
  std::ifstream(file) >> child;
  ASSERT_GT(child, 0);
  // The process has ended, or is a zombie that was not reaped yet.
  std::string state;
  for (int i = 0; i < 100; ++i) {
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string number, name;
    if (!(stat >> number >> name >> state) || state == "Z") return;
    usleep(10'000);
  }
  FAIL() << "the child still runs: " << state;
}

TEST(Subprocess, StoresNoMoreThanTheLimitAndStillEnds) {
  const SubprocessResult result = shell("head -c 1000000 /dev/zero", {.output_limit = 1000});
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.out.size(), 1000U);
}

TEST(Subprocess, ReportsAMissingProgram) {
  EXPECT_FALSE(run_subprocess({"no-such-program"}, {.path = "/usr/bin:/bin"}).found);
  EXPECT_FALSE(run_subprocess({"/etc/passwd"}, {}).found);
  EXPECT_EQ(find_program("sh", "/nowhere::/bin"), "/bin/sh");
}

}  // namespace
}  // namespace primus
