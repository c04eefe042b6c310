// Tests where the number of processes that the kernel has killed for lack of memory is read.
#include <gmock/gmock.h>

#include <filesystem>
#include <optional>

#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "safe/supervise/nodes/job_processes.h"

namespace primus::supervise {
namespace {

class MemoryKills : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    const Path path = folder_.path() / file;
    std::filesystem::create_directories(path.parent_path());
    write_file(path, text);
  }
  std::optional<std::int64_t> kills() const { return memory_kills(folder_.path().string()); }

 private:
  test::TemporaryFolder folder_;
};

// A supervisor named a hang "out-of-memory kill", because the kernel had killed a process of another job.
TEST_F(MemoryKills, ThoseOfOtherJobsDoNotCount) {
  EXPECT_EQ(kills(), std::nullopt);
  write("proc/vmstat", "nr_free_pages 5\noom_kill 8\n");
  EXPECT_EQ(kills(), 8);
  write("proc/self/cgroup", "0::/slice/job\n");
  EXPECT_EQ(kills(), 8) << "the group is invisible";
  write("sys/fs/cgroup/slice/job/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/slice/memory.events", "low 0\noom_kill 2\n");
  EXPECT_EQ(kills(), 2) << "only a parent group has a counter";
  write("sys/fs/cgroup/slice/job/memory.events", "low 0\noom 2\noom_kill 1\n");
  EXPECT_EQ(kills(), 1);
  write("proc/self/cgroup", "5:cpu:/\n4:memory:/job\n0::/\n");
  write("sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  EXPECT_EQ(kills(), 3);
}

}  // namespace
}  // namespace primus::supervise
