// Tests of the file that records are appended to.
#include "base/files/append_file.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "base/fault_env.h"

namespace primus {
namespace {

TEST(AppendFile, AppendsToAnExistingFile) {
  FaultEnv env;
  for (int run = 0; run < 2; ++run) {
    AppendFile file("/run/logs/info.log", env);
    EXPECT_TRUE(file.append(as_bytes("one\n")));
    EXPECT_TRUE(file.append(as_bytes("two\n")));
    EXPECT_EQ(file.size(), run == 0 ? 8U : 16U);
  }
  EXPECT_EQ(read_file("/run/logs/info.log", 100, env), "one\ntwo\none\ntwo\n");
}

TEST(AppendFile, AFullDiskLosesTheCompleteRecord) {
  FaultEnv env;
  AppendFile file("/run/file", env);
  EXPECT_TRUE(file.append(as_bytes("0123456789")));
  env.set_capacity(14);
  EXPECT_FALSE(file.append(as_bytes("abcdefghij")));
  EXPECT_NE(file.last_error().find("No space left"), std::string::npos) << file.last_error();
  EXPECT_EQ(read_file("/run/file", 100, env), "0123456789");
  EXPECT_TRUE(file.append(as_bytes("klm")));
  EXPECT_EQ(read_file("/run/file", 100, env), "0123456789klm");
}

// Whichever single operation fails, the file has only whole records in order, and later records are written.
TEST(AppendFile, AnyFailureLeavesOnlyCompleteRecords) {
  FaultEnv dry;
  {
    AppendFile file("/run/file", dry);
    for (const char* record : {"first ", "second ", "third "}) file.append(as_bytes(record));
  }
  for (std::uint64_t at = 0; at < dry.operations(); ++at) {
    FaultEnv env;
    AppendFile file("/run/file", env);
    env.fail_at(at, EIO);
    std::string expected;
    for (const std::string record : {"first ", "second ", "third ", "fourth "}) {
      if (file.append(as_bytes(record))) expected += record;
    }
    EXPECT_EQ(read_file("/run/file", 100, env), expected) << "operation " << at;
    EXPECT_NE(expected.find("fourth"), std::string::npos) << "operation " << at;
  }
}

TEST(AppendFile, SyncedRecordsSurviveACrash) {
  FaultEnv env;
  AppendFile file("/run/file", env);
  EXPECT_TRUE(file.sync());  // nothing to do yet
  ASSERT_TRUE(file.append(as_bytes("kept")));
  EXPECT_TRUE(file.sync());
  ASSERT_TRUE(file.append(as_bytes("lost")));
  env.crash_at(env.operations());
  EXPECT_THROW(file.append(as_bytes("x")), SimulatedCrash);
  env.reboot(FaultEnv::Survivors::kSynced);
  EXPECT_EQ(read_file("/run/file", 100, env), "kept");
}

}  // namespace
}  // namespace primus
