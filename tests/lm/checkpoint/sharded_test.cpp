// Tests checkpoints of many ranks: the files do not depend on the number of writers, and any number of ranks
// can read the files. An error or a lost rank never leaves a partial checkpoint.
#include <cerrno>
#include <map>
#include <numeric>

#include "rank_threads.h"

namespace primus {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const Path kRoot = "/run/checkpoints";
constexpr int kRankCounts[] = {1, 2, 3, 4, 8};

std::vector<std::string> save(const Snapshot& snapshot, int ranks, Env& env, SaveOptions options = {}) {
  return run_ranks(ranks, [&](const std::shared_ptr<CheckpointGroup>& group) {
    SaveOptions own = options;
    own.group = group;
    CheckpointRoot root(kRoot, own, env);
    root.save(cut(snapshot, group->rank(), ranks));
    EXPECT_EQ(root.last_saved(), snapshot.iteration);
  });
}

std::map<std::string, std::string> files_of(const Path& folder, Env& env) {
  std::map<std::string, std::string> files;
  for (const auto& name : env.list(folder)) files[name] = read_file(folder / name, 1U << 30, env);
  return files;
}

// Expects that the parts that `ranks` ranks read add up to the saved checkpoint.
void expect_loaded(const Snapshot& snapshot, int ranks, Env& env) {
  const auto errors = run_ranks(ranks, [&](const std::shared_ptr<CheckpointGroup>& group) {
    const ResumePoint point = find_resume_point(kRoot, Validation::kFull, env, group.get());
    ASSERT_TRUE(point.reader);
    EXPECT_EQ(point.reader->iteration(), snapshot.iteration);
    const Snapshot part = cut(snapshot, group->rank(), ranks);
    expect_tensors(*point.reader, TensorPart::kModel, part.model);
    expect_tensors(*point.reader, TensorPart::kOptimizer, part.optimizer);
  });
  EXPECT_THAT(errors, Each(""));
}

// Every file that `ranks` ranks write, including the manifest, has the bytes of the file that a single rank
// writes.
TEST(ShardedCheckpoint, FilesDoNotDependOnTheNumberOfRanks) {
  const ShardedSnapshot saved(7);
  for (const std::uint64_t max_shard_bytes : {5'000'000'000UL, 300UL}) {
    SCOPED_TRACE(max_shard_bytes);
    FaultEnv single;
    CheckpointRoot(kRoot, {.max_shard_bytes = max_shard_bytes}, single).save(saved.snapshot);
    const auto expected = files_of(kRoot / "iter_0000007", single);
    for (const int ranks : kRankCounts) {
      SCOPED_TRACE(ranks);
      FaultEnv env;
      EXPECT_THAT(save(saved.snapshot, ranks, env, {.max_shard_bytes = max_shard_bytes}), Each(""));
      EXPECT_EQ(files_of(kRoot / "iter_0000007", env), expected);
    }
  }
}

TEST(ShardedCheckpoint, AnyNumberOfRanksLoadsAnyCheckpoint) {
  const ShardedSnapshot saved(7);
  for (const int writers : kRankCounts) {
    FaultEnv env;
    EXPECT_THAT(save(saved.snapshot, writers, env), Each(""));
    for (const int readers : kRankCounts) {
      SCOPED_TRACE(std::to_string(writers) + " -> " + std::to_string(readers));
      expect_loaded(saved.snapshot, readers, env);
    }
  }
}

// Files are equal for every cut of a tensor whose axes have another order in the file. If a cut divides the
// elements of one expert, the elements of the two ranks alternate in the file.
TEST(ShardedCheckpoint, EveryCutOfAReorderedTensor) {
  TestTensors tensors;
  tensors.add("experts", DType::kBF16, {2, 3, 14}, 1);
  tensors.sources[0].order = {.dims = {2, 2, 7, 3}, .axes = {0, 3, 2, 1}};
  FaultEnv single;
  CheckpointRoot(kRoot, {}, single).save({.iteration = 1, .model = tensors.sources});
  const auto expected = files_of(kRoot / "iter_0000001", single);
  const std::int64_t elements = 2 * 3 * 14;
  for (std::int64_t at = 0; at <= elements; ++at) {
    SCOPED_TRACE(at);
    FaultEnv env;
    const auto errors = run_ranks(2, [&](const std::shared_ptr<CheckpointGroup>& group) {
      TensorSource own = tensors.sources[0];
      own.runs = group->rank() == 0 ? one_run(at, elements) : one_run(0, at);
      if (group->rank() == 0) own.data = static_cast<const std::byte*>(own.data) + at * 2;
      CheckpointRoot(kRoot, {.group = group}, env).save({.iteration = 1, .model = {own}});
    });
    ASSERT_THAT(errors, Each(""));
    ASSERT_EQ(files_of(kRoot / "iter_0000001", env), expected);
  }
}

// Ranks hold columns, as tensor parallelism cuts matrices: each row has pieces of all ranks. Rank 1's piece
// is cut again, in the middle of a row.
TEST(ShardedCheckpoint, RanksMayHoldColumns) {
  TestTensors tensors;
  tensors.add("down", DType::kF32, {5, 7}, 1);
  tensors.add("experts", DType::kBF16, {2, 3, 14}, 2);  // rows of 3 in memory
  tensors.sources[1].order = {.dims = {2, 2, 7, 3}, .axes = {0, 3, 2, 1}};
  FaultEnv single;
  CheckpointRoot(kRoot, {}, single).save({.iteration = 1, .model = tensors.sources});
  const auto expected = files_of(kRoot / "iter_0000001", single);
  const std::vector<std::vector<HeldRuns>> held = {
      {{{.begin = 0, .length = 2, .count = 5, .stride = 7}},
       {{.begin = 2, .length = 4, .count = 2, .stride = 7}, {.begin = 16, .length = 3}},
       {{.begin = 19, .length = 1}, {.begin = 23, .length = 4, .count = 2, .stride = 7}},
       {{.begin = 6, .length = 1, .count = 5, .stride = 7}}},
      {{{.begin = 0, .length = 1, .count = 28, .stride = 3}},
       {{.begin = 1, .length = 1, .count = 9, .stride = 3}},
       {{.begin = 28, .length = 1, .count = 19, .stride = 3}},
       {{.begin = 2, .length = 1, .count = 28, .stride = 3}}}};
  const int ranks = static_cast<int>(held[0].size());
  FaultEnv env;
  const auto part_of = [&](int rank, std::vector<std::vector<std::byte>>& memory) {
    std::vector<TensorSource> parts = tensors.sources;
    memory.resize(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].runs = held[i][static_cast<std::size_t>(rank)];
      const auto* whole = static_cast<const std::byte*>(parts[i].data);
      for_each_run(*parts[i].runs, [&](ElementRun run, std::int64_t) {
        const std::int64_t size = size_of(parts[i].dtype);
        memory[i].insert(memory[i].end(), whole + run.begin * size, whole + run.end * size);
      });
      parts[i].data = memory[i].data();
    }
    return parts;
  };
  const auto saved = run_ranks(ranks, [&](const std::shared_ptr<CheckpointGroup>& group) {
    std::vector<std::vector<std::byte>> memory;
    CheckpointRoot(kRoot, {.group = group}, env)
        .save({.iteration = 1, .model = part_of(group->rank(), memory)});
  });
  EXPECT_THAT(saved, Each(""));
  EXPECT_EQ(files_of(kRoot / "iter_0000001", env), expected);
  const auto loaded = run_ranks(ranks, [&](const std::shared_ptr<CheckpointGroup>& group) {
    const ResumePoint point = find_resume_point(kRoot, Validation::kFull, env, group.get());
    ASSERT_TRUE(point.reader);
    std::vector<std::vector<std::byte>> memory;
    expect_tensors(*point.reader, TensorPart::kModel, part_of(group->rank(), memory));
  });
  EXPECT_THAT(loaded, Each(""));
}

TEST(ShardedCheckpoint, RangesOfRanksMustCoverTheTensors) {
  const ShardedSnapshot saved(7);
  const auto save_with = [&](const std::function<void(Snapshot&, int)>& change) {
    FaultEnv env;
    const auto errors = run_ranks(3, [&](const std::shared_ptr<CheckpointGroup>& group) {
      Snapshot part = cut(saved.snapshot, group->rank(), 3);
      change(part, group->rank());
      CheckpointRoot(kRoot, {.group = group}, env).save(part);
    });
    EXPECT_THAT(errors, Each(errors[0]));
    EXPECT_TRUE(!env.status(kRoot) || env.list(kRoot).empty());
    return errors[0];
  };
  EXPECT_THAT(save_with([](Snapshot& part, int rank) {
                if (rank == 2) part.iteration = 8;
              }),
              HasSubstr("ranks 0 and 2 save different tensors or iterations"));
  EXPECT_THAT(save_with([](Snapshot& part, int rank) {
                if (rank == 1) part.model[0].shape = {6, 37};
              }),
              HasSubstr("ranks 0 and 1 save different tensors"));
  EXPECT_THAT(save_with([](Snapshot& part, int rank) {
                if (rank == 0) part.model[0].runs->back().length -= 3;
              }),
              AllOf(StartsWith("no rank writes the elements ["), HasSubstr("of tensor 'embed.weight'")));
  EXPECT_THAT(save_with([](Snapshot& part, int rank) {
                if (rank != 1) return;
                part.model[0].runs->front().begin -= 1;
                part.model[0].runs->front().length += 1;
                part.model[0].data = static_cast<const std::byte*>(part.model[0].data) - 2;
              }),
              AllOf(StartsWith("two ranks write element "), HasSubstr("of tensor 'embed.weight'")));
  EXPECT_THAT(save_with([](Snapshot& part, int rank) {
                if (rank == 1) part.model[5].runs = one_run(5, 9);
              }),
              AllOf(StartsWith("rank 1: tensor 'norm.weight' has 7 elements"), HasSubstr("[5, 9)")));
  EXPECT_THAT(save_with([](Snapshot& part, int rank) {
                if (rank == 2) {
                  part.optimizer.back().data = nullptr;
                  part.optimizer.back().fill = [](std::uint64_t, std::span<std::byte>) {
                    throw invalid("device lost");
                  };
                }
              }),
              "rank 2: device lost");
}

// Each byte is checked by at least one rank. If any byte is changed, all ranks reject the checkpoint and use
// the previous one.
TEST(ShardedCheckpoint, EveryByteIsCheckedBySomeRank) {
  const ShardedSnapshot before(6), saved(7);
  FaultEnv env;
  EXPECT_THAT(save(before.snapshot, 2, env), Each(""));
  EXPECT_THAT(save(saved.snapshot, 3, env), Each(""));
  const Path folder = kRoot / "iter_0000007";
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const std::uint64_t size = env.status(folder / name)->size;
    for (std::uint64_t byte = 0; byte < size; byte += 3) {
      SCOPED_TRACE(std::string(name) + " byte " + std::to_string(byte));
      env.flip_bit(folder / name, byte * 8 + byte % 8);
      const auto errors = run_ranks(3, [&](const std::shared_ptr<CheckpointGroup>& group) {
        const ResumePoint point = find_resume_point(kRoot, Validation::kFull, env, group.get());
        ASSERT_TRUE(point.reader);
        EXPECT_EQ(point.reader->iteration(), 6);
        ASSERT_EQ(point.rejected.size(), 1U);
        throw invalid(point.rejected[0]);
      });
      EXPECT_THAT(errors[0], AllOf(StartsWith("iter_0000007: "), HasSubstr(name)));
      ASSERT_THAT(errors, Each(errors[0]));
      env.flip_bit(folder / name, byte * 8 + byte % 8);
    }
  }
  expect_loaded(saved.snapshot, 4, env);
}

// A rank that is lost while others read does not make the checkpoint invalid.
TEST(ShardedCheckpoint, ALostRankInvalidatesNoCheckpoint) {
  const ShardedSnapshot saved(7);
  FaultEnv env;
  EXPECT_THAT(save(saved.snapshot, 2, env), Each(""));
  const auto errors = run_ranks(3, [&](const std::shared_ptr<CheckpointGroup>& group) {
    if (group->rank() == 1) throw SimulatedCrash();
    find_resume_point(kRoot, Validation::kFull, env, group.get());
  });
  EXPECT_EQ(errors, (std::vector<std::string>{"rank 1 was lost", "lost", "rank 1 was lost"}));
}

// The checkpoint has the old values, although every rank changes its tensors right after wait_copied().
TEST(ShardedCheckpoint, AsyncWritersSaveTheTensorsAtTheTimeOfTheCall) {
  FaultEnv env;
  const auto errors = run_ranks(4, [&](const std::shared_ptr<CheckpointGroup>& group) {
    AsyncWriter writer(kRoot, {.keep_last = 2, .group = group}, env);
    for (std::int64_t iteration = 1; iteration <= 10; ++iteration) {
      ShardedSnapshot changing(iteration);
      writer.save(cut(changing.snapshot, group->rank(), 4));
      writer.wait_copied();
      for (auto* tensors : {&changing.model, &changing.optimizer}) {
        for (auto& bytes : tensors->storage) std::ranges::fill(bytes, std::byte{0xee});
      }
    }
    writer.wait();
    EXPECT_EQ(writer.last_saved(), 10);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(CheckpointRoot(kRoot, {}, env).iterations(), (std::vector<std::int64_t>{9, 10}));
  expect_loaded(ShardedSnapshot(10).snapshot, 3, env);
}

}  // namespace
}  // namespace primus
