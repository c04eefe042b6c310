// Tests of available host memory: the machine's own, and limits of control groups of versions 1 and 2.
#include "base/system/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "base/system/control_groups.h"
#include "base/temporary_folder.h"

namespace primus {
namespace {

class HostMemoryTest : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const Path file = folder_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    write_file(file, text);
  }
  HostMemory read() const { return host_memory(folder_.path().string()); }
  void machine() {
    write("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    600 kB\n");
  }
  test::TemporaryFolder folder_;
};

TEST_F(HostMemoryTest, WithoutALimitItIsTheMachinesMemory) {
  machine();
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/fs/cgroup/memory.current", "5000\n");
  EXPECT_EQ(read().total, 1000 * 1024);
  EXPECT_EQ(read().available, 600 * 1024);
  EXPECT_EQ(read().limited_by, "");
}

TEST_F(HostMemoryTest, TheTightestGroupLimitsIt) {
  machine();
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/memory.max", "900000\n");
  write("sys/fs/cgroup/job/step/memory.current", "100000\n");
  write("sys/fs/cgroup/job/memory.max", "400000\n");
  write("sys/fs/cgroup/job/memory.current", "300000\n");
  // Cache counts as available: 50000 of the used bytes.
  write("sys/fs/cgroup/job/memory.stat", "anon 250000\ninactive_file 50000\n");
  EXPECT_EQ(read().total, 400000);
  EXPECT_EQ(read().available, 150000);
  EXPECT_TRUE(read().limited_by.ends_with("/sys/fs/cgroup/job"));
  write("sys/fs/cgroup/job/memory.current", "900000\n");
  EXPECT_EQ(read().available, 0);
}

TEST_F(HostMemoryTest, ReadsControlGroupsOfVersionOne) {
  machine();
  write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/box\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "500000\n");
  write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "200000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "700000\n");
  EXPECT_EQ(read().available, 300000);
  EXPECT_EQ(read().total, 500000);
}

TEST_F(HostMemoryTest, UnreadableFilesCountAsZero) {
  EXPECT_EQ(read().available, 0);
  write("proc/meminfo", "MemTotal: many kB\nMemAvailable:\n");
  EXPECT_EQ(read().total, 0);
}

TEST(HostMemory, IsDetectedHere) {
  const HostMemory here = host_memory();
  EXPECT_GT(here.available, 0);
  EXPECT_LE(here.available, here.total);
}

TEST(ControlGroups, AGroupComesBeforeItsParent) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "proc/self");
  write_file(folder.path() / "proc/self/cgroup", "3:cpu,cpuacct:/a/b\n1:memory:/\nnonsense\n0::/c\n");
  const std::string root = folder.path().string();
  std::vector<std::string> found;
  for (const ControlGroup& group : control_groups("cpu", root))
    found.push_back(group.folder.substr(root.size()));
  EXPECT_EQ(found, (std::vector<std::string>{"/sys/fs/cgroup/cpu/a/b", "/sys/fs/cgroup/cpu/a",
                                             "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/c", "/sys/fs/cgroup"}));
}

}  // namespace
}  // namespace primus
