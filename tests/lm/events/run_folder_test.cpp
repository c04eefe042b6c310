#include "lm/events/run_folder.h"

#include <gtest/gtest.h>

#include "../../base/temporary_folder.h"
#include "base/fault_env.h"

namespace primus {
namespace {

TEST(RunFolder, HasAmdPrimussLayout) {
  const RunFolder run({"./output", "amd", "root", "llama-pretrain"});
  EXPECT_EQ(run.root(), "./output/amd/root/llama-pretrain");
  EXPECT_EQ(run.rank_logs("pre_trainer", 3), "./output/amd/root/llama-pretrain/logs/pre_trainer/rank-3");
  EXPECT_EQ(run.tensorboard(), "./output/amd/root/llama-pretrain/tensorboard");
  EXPECT_EQ(run.checkpoints(), "./output/amd/root/llama-pretrain/checkpoints");
  EXPECT_EQ(run.metrics_file(), "./output/amd/root/llama-pretrain/metrics.jsonl");
}

TEST(RunFolder, NamesMayBeNestedButStayInTheWorkspace) {
  EXPECT_EQ(RunFolder({"/w", "g", "u", "sweep/lr-1e-5"}).root(), "/w/g/u/sweep/lr-1e-5");
  for (const char* name : {"", "..", "a/../b", "/etc", "a//b", "a/", ".", "a\nb"}) {
    try {
      RunFolder({"/w", "g", "u", name});
      ADD_FAILURE() << "accepted '" << name << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_NE(std::string(error.what()).find("exp_name"), std::string::npos) << error.what();
      EXPECT_FALSE(error.hint().empty());
    }
  }
  try {
    RunFolder({"/w", "g", "u", std::string(300, 'x')});
    ADD_FAILURE() << "accepted a name that is too long";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("of 300 bytes"), std::string::npos) << error.what();
  }
  EXPECT_THROW(RunFolder({"", "g", "u", "e"}), Error);
  EXPECT_THROW(RunFolder({"/w", "g", "u", "e"}).rank_logs("../x", 0), Error);
}

TEST(RunFolder, CreateReportsAnImpossibleFolder) {
  FaultEnv env;
  const RunFolder run({"/w", "g", "u", "e"});
  run.create(env);
  EXPECT_EQ(env.status(run.root())->type, FileStatus::Type::kFolder);
  write_file("/file", "in the way", env);
  EXPECT_THROW(RunFolder({"/file", "g", "u", "e"}).create(env), Error);
}

TEST(RunLock, AdmitsOneProcess) {
  const test::TemporaryFolder folder;
  {
    const RunLock held(folder.path());
    // A lock of flock() belongs to the open file. So a second lock in this process is refused, like a lock of
    // another process.
    try {
      const RunLock second(folder.path());
      ADD_FAILURE() << "the folder was locked twice";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_NE(std::string(error.what()).find("another process is training"), std::string::npos);
    }
  }
  const RunLock again(folder.path());
}

}  // namespace
}  // namespace primus
