// Tests that the number of nodes is derived from Slurm's options.
#include "launch/slurm.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "surroundings.h"

namespace primus::launch {
namespace {

int nodes_with(const std::vector<GivenOption>& given) {
  test::Machine machine;
  machine.file("bin/srun", "#!/bin/sh\n");
  std::filesystem::permissions(machine.folder.path() / "bin/srun", std::filesystem::perms::owner_all);
  machine.variables["PATH"] = (machine.folder.path() / "bin").string();
  return plan_slurm({}, {.given = given, .inner = {"direct", "--", "version"}}, machine.surroundings())
      .nodes.nodes;
}

TEST(SlurmPlan, CountsNodesByTasks) {
  EXPECT_EQ(nodes_with({}), 1);
  EXPECT_EQ(nodes_with({{"ntasks", "5"}, {"ntasks-per-node", "2"}}), 3);
  EXPECT_EQ(nodes_with({{"ntasks", "4"}, {"ntasks-per-node", "2"}}), 2);
  EXPECT_EQ(nodes_with({{"ntasks", "1"}, {"ntasks-per-node", "8"}}), 1);
  EXPECT_EQ(nodes_with({{"ntasks", "5"}}), 0) << "only Slurm decides the number";
}

TEST(SlurmPlan, CountsNodesByNumberAndByName) {
  EXPECT_EQ(nodes_with({{"nodes", "4"}, {"ntasks", "5"}, {"ntasks-per-node", "2"}}), 4);
  EXPECT_EQ(nodes_with({{"nodes", "2-4"}}), 0) << "only Slurm decides the number";
  EXPECT_EQ(nodes_with({{"nodelist", "gpu-[01-03],login"}}), 4);
  EXPECT_THROW(nodes_with({{"ntasks", "5"}, {"ntasks-per-node", "0"}}), Error);
}

}  // namespace
}  // namespace primus::launch
