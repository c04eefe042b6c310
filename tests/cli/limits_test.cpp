// Tests that Primus reports an error, and does not crash, if a shell limit is too low.
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "base/address_space.h"
#include "base/small_disk.h"
#include "base/temporary_folder.h"

namespace primus::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct Result {
  int exit_code;
  std::string output;
};

Result run_under(const std::string& limits, const std::string& arguments,
                 const std::string& program = PRIMUS_PROGRAM) {
  const std::string command = limits + " && exec " + program + " " + arguments + " 2>&1";
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::string output;
  std::array<char, 4096> part;
  for (std::size_t count; (count = std::fread(part.data(), 1, part.size(), pipe)) > 0;)
    output.append(part.data(), count);
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

const std::string kDryRun = "train pretrain --dry-run --config " PRIMUS_SOURCE_DIR
                            "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";

TEST(Limits, AreReportedWithTheNeededValue) {
  if (!kAddressSpaceCanBeLimited) GTEST_SKIP();
  for (const std::string& command : {kDryRun, "direct -- " + kDryRun}) {
    for (const char* kib : {"64", "128", "500"}) {
      const Result stack = run_under(std::string("ulimit -s ") + kib, command);
      EXPECT_EQ(stack.exit_code, 2);
      EXPECT_THAT(stack.output, StartsWith("error: the stack is limited to"));
      EXPECT_THAT(stack.output, HasSubstr("hint: raise the limit: 'ulimit -s 512'"));
    }
    // The program itself takes 31 000 KiB of address space.
    for (const char* kib : {"32500", "36000", "40000", "65000"}) {
      const Result memory = run_under(std::string("ulimit -v ") + kib, command);
      EXPECT_EQ(memory.exit_code, 2);
      EXPECT_THAT(memory.output, StartsWith("error: the memory of a process is limited to"));
      EXPECT_THAT(memory.output, HasSubstr("hint: raise the limit: 'ulimit -v 65536'"));
    }
  }
  EXPECT_EQ(run_under("ulimit -s 512", kDryRun).exit_code, 0);
  EXPECT_EQ(run_under("ulimit -s 64", "--version").exit_code, 0);
}

// libxsmm opens a lock file in /tmp. Another user could create a pipe or link of that name. Primus neither
// waits for the pipe nor follows the link.
TEST(Limits, FilesInTmpDoNotPreventAStart) {
  if (std::string_view(PRIMUS_PROGRAM).starts_with("/tmp/")) GTEST_SKIP() << "the program itself is in /tmp";
  const bool tried = test::on_small_disk(std::uint64_t{16} << 20, [](const Path&) {
    ASSERT_EQ(::mount("tmpfs", "/tmp", "tmpfs", 0, nullptr), 0);
    const std::string name = "/tmp/.libxsmm." + std::to_string(::getuid());
    ASSERT_EQ(::mkfifo(name.c_str(), 0666), 0);
    const std::string command = "train pretrain --config " PRIMUS_SOURCE_DIR
                                "/examples/native/configs/CPU/llama_tiny-pretrain.yaml workspace=/tmp/out "
                                "train_iters=1 seq_length=32 "
                                "micro_batch_size=1 global_batch_size=1 num_threads=1";
    const Result pipe = run_under("cd /tmp", command, "timeout 60 " PRIMUS_PROGRAM);
    EXPECT_EQ(pipe.exit_code, 0) << pipe.output;
    ASSERT_EQ(::unlink(name.c_str()), 0);
    ASSERT_EQ(::symlink("/tmp/target", name.c_str()), 0);
    EXPECT_EQ(run_under("cd /tmp", command + " --force exp_name=b").exit_code, 0);
    EXPECT_NE(::access("/tmp/target", F_OK), 0) << "the link's target was created";
  });
  if (!tried) GTEST_SKIP() << "mounting a file system is not permitted here";
}

TEST(Limits, MoreThreadsThanAllowedAreAnError) {
  if (!kAddressSpaceCanBeLimited) GTEST_SKIP();
  const Result result = run_under("ulimit -v 300000", kDryRun + " num_threads=64");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, HasSubstr("cannot start a thread that computes, number "));
  EXPECT_THAT(result.output, HasSubstr(" of 64: Resource temporarily unavailable"));
  EXPECT_THAT(result.output, HasSubstr("'ulimit -v' limits memory in KiB"));
}

// Whichever allocation fails first, it is reported, and no rank is killed by a signal.
TEST(Limits, RanksWithoutMemoryEndByName) {
  if (!kAddressSpaceCanBeLimited) GTEST_SKIP();
  const test::TemporaryFolder folder;
  const std::string command =
      "train pretrain --config " PRIMUS_SOURCE_DIR
      "/examples/native/configs/CPU/llama_tiny-pretrain.yaml --nproc 2 train_iters=1 seq_length=32 "
      "micro_batch_size=1 global_batch_size=2 num_threads=1 workspace=" +
      folder.path().string();
  for (const int kibibytes : {88000, 92000, 96000, 98000, 102000}) {
    const Result result = run_under("ulimit -v " + std::to_string(kibibytes), command);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.output, ::testing::Not(HasSubstr("killed by signal"))) << kibibytes;
  }
}

}  // namespace
}  // namespace primus::cli
