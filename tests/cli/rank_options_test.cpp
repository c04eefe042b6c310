// Tests the command that starts the ranks of a command with --nproc.
#include "cli/options/rank_options.h"

#include <gtest/gtest.h>

#include "cli/options/own_command.h"
#include "cli/parse.h"
#include "launch/node/numa.h"

namespace primus::cli {
namespace {

// `PROGRAM __numa PROGRAM WORD...` binds the process, and then starts the program with the same words.
TEST(RankOptions, NumaPrecedesTheWholeCommand) {
  for (const bool numa : {false, true}) {
    std::vector<std::string> words = {"--nproc", "2"};
    if (numa) words.emplace_back("--numa");
    RankOptions ranks;
    Arguments arguments;
    ranks.declare(arguments, "number of ranks");
    ASSERT_TRUE(parse(arguments, words, "primus test"));
    std::vector<std::string> expected = own_command();
    if (numa) expected.insert(expected.begin(), {expected.front(), std::string(launch::kNumaWord)});
    EXPECT_EQ(ranks.start(2).command, expected);
  }
}

TEST(RankOptions, TheAddressOfASingleMachineIsUnused) {
  const auto note = [](const std::vector<std::string>& words) {
    RankOptions ranks;
    Arguments arguments;
    ranks.declare(arguments, "number of ranks");
    EXPECT_TRUE(parse(arguments, words, "primus test"));
    return ranks.unused_master().value_or("");
  };
  EXPECT_EQ(note({"--nproc", "2"}), "");
  EXPECT_EQ(
      note({"--nproc", "2", "--master_addr", "h"}),
      "--master_addr has no effect: all ranks of the job are on this machine; --nnodes sets more machines");
  EXPECT_TRUE(note({"--master_port", "5001"}).starts_with("--master_port has no effect"));
  EXPECT_EQ(note({"--nnodes", "2", "--master_addr", "h", "--master_port", "5001"}), "");
}

}  // namespace
}  // namespace primus::cli
