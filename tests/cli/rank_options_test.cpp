// Tests the command that starts the ranks of a command with --nproc.
#include "cli/options/rank_options.h"

#include <gtest/gtest.h>

#include "cli/options/own_command.h"
#include "cli/parse.h"
#include "launch/numa.h"

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

}  // namespace
}  // namespace primus::cli
