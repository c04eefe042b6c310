// Tests which ranks form the groups of each mesh axis, which must be as in Megatron-LM.
#include "engine/parallel/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/measuring.h"

namespace primus::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

std::unique_ptr<comm::Communicator> world_of(int rank, int ranks) {
  return std::make_unique<comm::MeasuringCommunicator>("world", rank, ranks);
}

// Returns the groups of all ranks, each in the order of its ranks. Groups are distinguished by name.
template <class Choose>
std::vector<std::vector<int>> groups(const MeshShape& shape, int ranks, Choose choose) {
  std::map<std::string, std::map<int, int>> members;
  for (int r = 0; r < ranks; ++r) {
    Mesh mesh(world_of(r, ranks), shape);
    comm::Communicator* group = choose(mesh);
    if (!group) continue;
    EXPECT_TRUE(members[group->name()].emplace(group->rank(), r).second)
        << "two ranks have the same number in a group";
  }
  std::vector<std::vector<int>> lists;
  for (const auto& [name, places] : members) {
    std::vector<int>& list = lists.emplace_back();
    for (const auto& [place, rank] : places) {
      EXPECT_EQ(place, static_cast<int>(list.size()));
      list.push_back(rank);
    }
  }
  return lists;
}

const auto kTensor = [](Mesh& m) { return m.tensor(); };
const auto kContext = [](Mesh& m) { return m.context(); };
const auto kPipeline = [](Mesh& m) { return m.pipeline(); };
const auto kExperts = [](Mesh& m) { return m.experts(); };
template <ReduceGroup kGroup>
const auto kReduction = [](Mesh& m) { return m.reduction(kGroup).all; };

// The example in Megatron-LM's documentation: 16 ranks, tensor 2, pipeline 4.
TEST(Mesh, MegatronsExample) {
  const MeshShape shape{.tensor = 2, .pipeline = 4};
  EXPECT_THAT(
      groups(shape, 16, kTensor),
      UnorderedElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5), ElementsAre(6, 7),
                           ElementsAre(8, 9), ElementsAre(10, 11), ElementsAre(12, 13), ElementsAre(14, 15)));
  EXPECT_THAT(groups(shape, 16, kPipeline),
              UnorderedElementsAre(ElementsAre(0, 4, 8, 12), ElementsAre(1, 5, 9, 13),
                                   ElementsAre(2, 6, 10, 14), ElementsAre(3, 7, 11, 15)));
  EXPECT_THAT(
      groups(shape, 16, kReduction<ReduceGroup::kData>),
      UnorderedElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(4, 6), ElementsAre(5, 7),
                           ElementsAre(8, 10), ElementsAre(9, 11), ElementsAre(12, 14), ElementsAre(13, 15)));
  EXPECT_THAT(
      groups(shape, 16, [](Mesh& m) { return m.ends(); }),
      UnorderedElementsAre(ElementsAre(0, 12), ElementsAre(1, 13), ElementsAre(2, 14), ElementsAre(3, 15)));
  EXPECT_TRUE(groups(shape, 16, kContext).empty());
  EXPECT_TRUE(groups(shape, 16, kExperts).empty());
}

// 8 ranks, tensor 2, context 2. Gradients of parameters split over tensor ranks are summed over data and
// context ranks.
TEST(Mesh, ContextRanksShareSequencesAndGradients) {
  const MeshShape shape{.tensor = 2, .context = 2};
  EXPECT_THAT(groups(shape, 8, kContext), UnorderedElementsAre(ElementsAre(0, 2), ElementsAre(1, 3),
                                                               ElementsAre(4, 6), ElementsAre(5, 7)));
  EXPECT_THAT(groups(shape, 8, [](Mesh& m) { return m.sequence(); }),
              UnorderedElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(groups(shape, 8, kReduction<ReduceGroup::kData>),
              UnorderedElementsAre(ElementsAre(0, 2, 4, 6), ElementsAre(1, 3, 5, 7)));
  EXPECT_THAT(groups(shape, 8, kReduction<ReduceGroup::kTokens>),
              ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)));
  const Mesh mesh(world_of(5, 8), shape);
  EXPECT_EQ(mesh.data_ranks(), 2);
  EXPECT_EQ(mesh.data_rank(), 1);
  EXPECT_EQ(mesh.place().tensor, 1);
  EXPECT_EQ(mesh.place().context, 0);
}

// 8 ranks, tensor 2, 4 expert ranks. The expert axis spans tensor and data ranks.
TEST(Mesh, ExpertsHaveTheirOwnGroups) {
  const MeshShape shape{.tensor = 2, .expert = 4};
  EXPECT_THAT(groups(shape, 8, kExperts),
              UnorderedElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(
      groups(shape, 8, kReduction<ReduceGroup::kExperts>),
      UnorderedElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
  EXPECT_THAT(groups(shape, 8, kReduction<ReduceGroup::kData>),
              UnorderedElementsAre(ElementsAre(0, 2, 4, 6), ElementsAre(1, 3, 5, 7)));
  const MeshShape split{.tensor = 2, .expert = 2, .expert_tensor = 2};
  EXPECT_THAT(
      groups(split, 8, kReduction<ReduceGroup::kExperts>),
      UnorderedElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
  EXPECT_THAT(groups(split, 8, kReduction<ReduceGroup::kExpertTokens>),
              UnorderedElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(2, 3, 6, 7)));
  const Mesh mesh(world_of(6, 8), split);
  EXPECT_EQ(mesh.place().expert_tensor, 0);
  EXPECT_EQ(mesh.place().expert, 1);
}

// 16 ranks on hosts of four, with two groups of eight expert ranks on two hosts each.
TEST(Mesh, ExpertGroupsOnSeveralHostsHaveGroupsForTwoHops) {
  const auto between = [](Mesh& m) { return m.expert_hosts().between; };
  const auto within = [](Mesh& m) { return m.expert_hosts().within; };
  const MeshShape shape{.expert = 4, .expert_tensor = 2, .host = 4};
  EXPECT_THAT(
      groups(shape, 16, between),
      UnorderedElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7),
                           ElementsAre(8, 12), ElementsAre(9, 13), ElementsAre(10, 14), ElementsAre(11, 15)));
  EXPECT_THAT(groups(shape, 16, within),
              UnorderedElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7),
                                   ElementsAre(8, 9, 10, 11), ElementsAre(12, 13, 14, 15)));
  EXPECT_TRUE(groups({.expert = 4, .host = 4}, 16, between).empty()) << "each group is on one host";
  EXPECT_TRUE(groups({.expert = 8, .host = 0}, 16, within).empty()) << "hosts are unknown";
  EXPECT_TRUE(groups({.expert = 4, .host = 3}, 12, within).empty()) << "groups have parts of hosts";
}

// Reduce groups with equal ranks resolve to a single group.
TEST(Mesh, GroupsOfTheSameRanksAreShared) {
  const Mesh data(world_of(1, 4), {});
  EXPECT_EQ(data.resolve(ReduceGroup::kTokens), ReduceGroup::kData);
  EXPECT_EQ(data.resolve(ReduceGroup::kExperts), ReduceGroup::kData);
  const Mesh tensor(world_of(1, 4), {.tensor = 2});
  EXPECT_EQ(tensor.resolve(ReduceGroup::kTokens), ReduceGroup::kTokens);
  EXPECT_EQ(tensor.resolve(ReduceGroup::kExperts), ReduceGroup::kTokens);
  const Mesh experts(world_of(1, 4), {.expert = 2});
  EXPECT_EQ(experts.resolve(ReduceGroup::kExpertTokens), ReduceGroup::kExperts);
  const Mesh wide(world_of(1, 4), {.tensor = 2, .expert_tensor = 2});
  EXPECT_EQ(wide.resolve(ReduceGroup::kExperts), ReduceGroup::kExperts);
  EXPECT_EQ(wide.resolve(ReduceGroup::kExpertTokens), ReduceGroup::kTokens);
  EXPECT_EQ(Mesh(world_of(1, 4), {.expert_tensor = 2}).resolve(ReduceGroup::kExpertTokens),
            ReduceGroup::kData);
  const Mesh single;
  for (const ReduceGroup group :
       {ReduceGroup::kData, ReduceGroup::kTokens, ReduceGroup::kExperts, ReduceGroup::kExpertTokens})
    EXPECT_EQ(single.reduction(group).size(), 1);
}

TEST(Mesh, HybridShardsAreConsecutiveRanksOfTheReduceGroup) {
  const MeshShape shape{.tensor = 2, .copies = 2};
  EXPECT_THAT(
      groups(shape, 8, [](Mesh& m) { return m.reduction(ReduceGroup::kData).shard; }),
      UnorderedElementsAre(ElementsAre(0, 2), ElementsAre(4, 6), ElementsAre(1, 3), ElementsAre(5, 7)));
  EXPECT_THAT(
      groups(shape, 8, [](Mesh& m) { return m.reduction(ReduceGroup::kData).replicas; }),
      UnorderedElementsAre(ElementsAre(0, 4), ElementsAre(2, 6), ElementsAre(1, 5), ElementsAre(3, 7)));
}

TEST(Mesh, AxesThatDoNotDivideTheRanksAreRefused) {
  for (const MeshShape& shape :
       {MeshShape{.tensor = 3}, MeshShape{.pipeline = 3}, MeshShape{.expert = 3}, MeshShape{.copies = 3},
        MeshShape{.tensor = 2, .context = 2, .pipeline = 4}, MeshShape{.tensor = 0}}) {
    EXPECT_THROW(Mesh(world_of(0, 8), shape), std::logic_error);
  }
}

// Each group declares the work that its collectives overlap. On GPUs, a group uses multiprocessors or copy
// engines, depending on this work.
TEST(Mesh, GroupsReportTheirOverlap) {
  using comm::Overlap;
  const Mesh mesh(world_of(0, 64),
                  {.tensor = 2, .context = 2, .pipeline = 2, .expert = 2, .expert_tensor = 2, .copies = 2});
  std::map<std::string, Overlap> found;
  for (const comm::Communicator* group : mesh.groups()) found[group->name()] = group->overlap();
  const std::map<std::string, Overlap> wanted = {{"world", Overlap::kNothing},
                                                 {"tensor.0", Overlap::kProducts},
                                                 {"context.0", Overlap::kKernels},
                                                 {"sequence.0", Overlap::kNothing},
                                                 {"experts.0", Overlap::kNothing},
                                                 {"pipeline.0", Overlap::kNothing},
                                                 {"ends.0", Overlap::kNothing},
                                                 {"data.0", Overlap::kKernels},
                                                 {"data.shards.0", Overlap::kKernels},
                                                 {"data.replicas.0", Overlap::kKernels},
                                                 {"tokens.0", Overlap::kKernels},
                                                 {"tokens.shards.0", Overlap::kKernels},
                                                 {"tokens.replicas.0", Overlap::kKernels},
                                                 {"expert_data.0", Overlap::kKernels},
                                                 {"expert_data.shards.0", Overlap::kKernels},
                                                 {"expert_data.replicas.0", Overlap::kKernels},
                                                 {"expert_tokens.0", Overlap::kKernels},
                                                 {"expert_tokens.shards.0", Overlap::kKernels},
                                                 {"expert_tokens.replicas.0", Overlap::kKernels}};
  EXPECT_EQ(found, wanted);
}

// A measuring mesh uses copy engines for the same groups as the real mesh.
TEST(Mesh, MeasuresItsExchanges) {
  for (const bool copied : {false, true}) {
    const Mesh mesh(std::make_unique<comm::MeasuringCommunicator>("world", 1, 4, copied), {.tensor = 2});
    Mesh measuring = mesh.measuring();
    EXPECT_EQ(measuring.tensor()->by_copy_engines(), copied);
    EXPECT_FALSE(measuring.world()->by_copy_engines());
  }
}

// Ordered sums need more memory, which the measuring mesh must count.
TEST(Mesh, MeasuresOrderedSums) {
  for (const bool ordered : {false, true}) {
    auto world = std::make_unique<comm::MeasuringCommunicator>("world", 1, 8);
    world->set_ordered_sums(ordered);
    Mesh mesh(std::move(world), {.tensor = 4, .expert = 2});
    Mesh measuring = mesh.measuring();
    for (Mesh* const of : {&mesh, &measuring}) {
      EXPECT_EQ(of->tensor()->ordered_sums(), ordered);
      EXPECT_EQ(of->experts()->ordered_sums(), ordered);
    }
  }
}

}  // namespace
}  // namespace primus::engine
