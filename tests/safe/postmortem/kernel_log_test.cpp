// Tests reading of the kernel's log with a stand-in for dmesg.
#include "safe/postmortem/kernel_log.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "base/files/file.h"
#include "base/files/scratch_folder.h"
#include "lm/events/run_event.h"
#include "safe/postmortem/text_evidence.h"

namespace primus::postmortem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(KernelLog, OfTheRunsMachineIsRead) {
  const ScratchFolder folder("kernel-log");
  const Path program = folder.path() / "dmesg";
  write_file_atomic(program,
                    "#!/bin/sh\n"
                    "echo '2026-11-28T05:00:31,250000+00:00 Out of memory: Killed process 7 (primus)'\n"
                    "echo '2026-11-28T05:00:32,000000+00:00 eth0: fine'\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  CaseFile file{.ranks = {{.rank = 0, .node = host_name()}}};
  read_output(kernel_log(folder.path().string(), file), "dmesg", 0, file);
  ASSERT_THAT(file.evidence, SizeIs(1));
  EXPECT_EQ(file.evidence[0].cause->name, "host-out-of-memory");
  EXPECT_EQ(file.evidence[0].node, host_name());
  EXPECT_EQ(file.evidence[0].time, 1795842031.25);
  EXPECT_THAT(file.notes, IsEmpty());

  CaseFile elsewhere{.ranks = {{.rank = 0, .node = "another"}}};
  EXPECT_EQ(kernel_log(folder.path().string(), elsewhere), "");

  std::filesystem::remove(program);
  EXPECT_EQ(kernel_log(folder.path().string(), file), "");
  EXPECT_THAT(file.notes, ElementsAre(HasSubstr("'dmesg' does not exist")));
}

}  // namespace
}  // namespace primus::postmortem
