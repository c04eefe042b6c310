#include "safe/supervise/nodes/agreement_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "base/fault_env.h"

namespace primus::supervise {
namespace {

const Path kRun = "/run";

AgreedState state(std::uint64_t version) { return {.job = 7, .view = 2, .version = version}; }

TEST(AgreementFiles, BeforeTheRunHasAFolderVotesCount) {
  FaultEnv env;
  AgreementFiles files(kRun, 2, env);
  EXPECT_FALSE(files.votes());
  EXPECT_TRUE(files.keep({.promised = 2}));
  EXPECT_TRUE(files.write(state(1)));
  env.make_folder(kRun);
  EXPECT_TRUE(files.keep({.promised = 4}));
  EXPECT_TRUE(files.write(state(1)));
  AgreementFiles later(kRun, 2, env);
  ASSERT_TRUE(later.votes());
  EXPECT_EQ(later.votes()->promised, 4U);
  ASSERT_TRUE(later.state());
  EXPECT_EQ(later.state()->version, 1U);
}

// After an error, the folder may exist.
TEST(AgreementFiles, AfterAnErrorNothingCounts) {
  for (const int code : {ESTALE, EIO, EACCES}) {
    FaultEnv env;
    AgreementFiles files(kRun, 2, env);
    env.fail_at(env.operations(), code);
    EXPECT_FALSE(files.keep({.promised = 2}));
    EXPECT_THAT(files.votes_error(), ::testing::HasSubstr(std::strerror(code)));
    EXPECT_TRUE(files.keep({.promised = 2}));
    EXPECT_EQ(files.votes_error(), "");
    env.fail_at(env.operations(), code);
    EXPECT_FALSE(files.write(state(1)));
    EXPECT_THAT(files.state_error(), ::testing::HasSubstr(std::strerror(code)));
    EXPECT_TRUE(files.write(state(1)));
    EXPECT_EQ(files.state_error(), "");
  }
}

TEST(AgreementFiles, AfterTheFolderHasVanishedNothingCounts) {
  FaultEnv env;
  env.make_folder(kRun);
  AgreementFiles files(kRun, 2, env);
  EXPECT_TRUE(files.keep({.promised = 2}));
  for (const std::string& name : env.list(kRun)) env.remove_file(kRun / name);
  env.remove_folder(kRun);
  EXPECT_FALSE(files.keep({.promised = 4}));
  EXPECT_FALSE(files.write(state(1)));
  EXPECT_NE(files.votes_error(), "");
  env.make_folder(kRun);
  EXPECT_TRUE(files.keep({.promised = 4}));
  EXPECT_TRUE(files.write(state(1)));
}

// The votes of the process before may be there, although this one could not read them.
TEST(AgreementFiles, UnreadableVotesAreNoReasonToKeepNone) {
  FaultEnv env;
  AgreementFiles files(kRun, 2, env);
  env.fail_at(env.operations(), EIO);
  EXPECT_FALSE(files.votes());
  EXPECT_FALSE(files.keep({.promised = 2}));
}

}  // namespace
}  // namespace primus::supervise
