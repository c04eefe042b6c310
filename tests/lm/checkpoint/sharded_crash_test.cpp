// Tests faults while many ranks save: one rank dies or fails at each of its file operations, the machine
// stops at any operation, or a process is killed. The next start finds the old checkpoint or the new one,
// complete.
#include <atomic>
#include <cerrno>

#include "rank_threads.h"

namespace primus {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const Path kRoot = "/run/checkpoints";
constexpr int kRanks = 3;

// The file system as one rank sees it. The rank's n-th operation fails, or the rank ends at it, while the
// other ranks continue.
class RankEnv : public Env {
 public:
  enum class Fault { kNone, kCrash, kError };
  RankEnv(Env& files, Fault fault, std::uint64_t at, int code)
      : files_(files), fault_(fault), at_(at), code_(code) {}
  bool struck() const { return operations_ > at_; }

  std::unique_ptr<File> open(const Path& path, OpenMode mode) override {
    count();
    return std::make_unique<RankFile>(*this, files_.open(path, mode));
  }
  MappedFile map(const Path& path) override { return counted().map(path); }
  std::optional<FileStatus> status(const Path& path) override { return counted().status(path); }
  bool is_link(const Path& path) override { return counted().is_link(path); }
  std::vector<std::string> list(const Path& folder) override { return counted().list(folder); }
  void make_folder(const Path& folder) override { counted().make_folder(folder); }
  void rename(const Path& from, const Path& to) override { counted().rename(from, to); }
  void remove_file(const Path& path) override { counted().remove_file(path); }
  void remove_folder(const Path& folder) override { counted().remove_folder(folder); }
  void sync_folder(const Path& folder) override { counted().sync_folder(folder); }
  std::uint64_t free_space(const Path& path) override { return counted().free_space(path); }

 private:
  class RankFile : public File {
   public:
    RankFile(RankEnv& env, std::unique_ptr<File> file) : env_(env), file_(std::move(file)) {}
    std::size_t read_at(std::span<std::byte> out, std::uint64_t offset) override {
      return counted().read_at(out, offset);
    }
    void write_at(std::span<const std::byte> data, std::uint64_t offset) override {
      counted().write_at(data, offset);
    }
    void append(std::span<const std::byte> data) override { counted().append(data); }
    void truncate(std::uint64_t size) override { counted().truncate(size); }
    void sync() override { counted().sync(); }
    std::uint64_t size() override { return counted().size(); }
    void close() override { file_->close(); }

   private:
    File& counted() {
      env_.count();
      return *file_;
    }
    RankEnv& env_;
    std::unique_ptr<File> file_;
  };

  Env& counted() {
    count();
    return files_;
  }
  void count() {
    const std::uint64_t operation = operations_++;
    if (fault_ == Fault::kCrash && operation >= at_) throw SimulatedCrash();
    if (fault_ == Fault::kError && operation == at_) throw FileError("cannot use a file", code_);
  }

  Env& files_;
  const Fault fault_;
  const std::uint64_t at_;
  const int code_;
  std::uint64_t operations_ = 0;
};

std::vector<std::string> save(const Snapshot& snapshot, const std::function<Env&(int rank)>& env_of,
                              SaveOptions options = {}) {
  return run_ranks(kRanks, [&](const std::shared_ptr<CheckpointGroup>& group) {
    SaveOptions own = options;
    own.group = group;
    CheckpointRoot(kRoot, own, env_of(group->rank())).save(cut(snapshot, group->rank(), kRanks));
  });
}
std::vector<std::string> save(const Snapshot& snapshot, Env& env, SaveOptions options = {}) {
  return save(
      snapshot, [&](int) -> Env& { return env; }, options);
}

// Returns the iteration of the complete checkpoint that a start finds after a fault; -1: none.
std::int64_t found(Env& env) {
  const ResumePoint point = find_resume_point(kRoot, Validation::kFull, env);
  EXPECT_TRUE(point.rejected.empty()) << "a partial checkpoint had a final name: " << point.rejected[0];
  if (!point.reader) return -1;
  ShardedSnapshot(point.reader->iteration()).expect_equal(*point.reader);
  return point.reader->iteration();
}

// Called after a fault during the save of iteration 200, when the checkpoint of iteration 100 exists. Checks
// which checkpoint a start finds, cleans up, and saves again.
void check_after(FaultEnv& env, bool finished) {
  const std::int64_t first = found(env);
  EXPECT_THAT(first, AnyOf(100, 200));
  if (finished) {
    EXPECT_EQ(first, 200);
  }
  CheckpointRoot(kRoot, {}, env).recover();
  EXPECT_EQ(found(env), first);
  for (const auto& name : env.list(kRoot)) EXPECT_FALSE(name.starts_with(".")) << name;
  EXPECT_THAT(save(ShardedSnapshot(200).snapshot, env), Each(""));
  EXPECT_EQ(found(env), 200);
}

class RankFault : public ::testing::TestWithParam<int> {};

TEST_P(RankFault, DyingAtEveryOperation) {
  const int victim = GetParam();
  for (const SaveOptions& options : {SaveOptions{.keep_last = 1}, {.keep_last = 2, .max_shard_bytes = 100}}) {
    std::uint64_t operation = 0;
    for (;; ++operation) {
      SCOPED_TRACE(operation);
      FaultEnv env;
      ASSERT_THAT(save(ShardedSnapshot(100).snapshot, env), Each(""));
      RankEnv dying(env, RankEnv::Fault::kCrash, operation, 0);
      const auto errors = save(
          ShardedSnapshot(200).snapshot,
          [&](int rank) -> Env& { return rank == victim ? dying : static_cast<Env&>(env); }, options);
      if (!dying.struck()) {
        EXPECT_THAT(errors, Each(""));
        break;
      }
      for (int rank = 0; rank < kRanks; ++rank) {
        const std::string& error = errors[static_cast<std::size_t>(rank)];
        if (rank == victim) {
          EXPECT_EQ(error, "lost");
        } else {
          EXPECT_EQ(error, "rank " + std::to_string(victim) + " was lost");
        }
      }
      check_after(env, false);
      if (HasFailure()) return;
    }
    EXPECT_GT(operation, victim == 0 ? 25U : 3U) << "a save has more operations";
  }
}

TEST_P(RankFault, FailingAtEveryOperation) {
  const int victim = GetParam();
  for (const int code : {EIO, ENOSPC}) {
    for (std::uint64_t operation = 0;; ++operation) {
      SCOPED_TRACE(operation);
      FaultEnv env;
      ASSERT_THAT(save(ShardedSnapshot(100).snapshot, env), Each(""));
      RankEnv failing(env, RankEnv::Fault::kError, operation, code);
      const auto errors = save(ShardedSnapshot(200).snapshot, [&](int rank) -> Env& {
        return rank == victim ? failing : static_cast<Env&>(env);
      });
      if (!failing.struck()) {
        EXPECT_THAT(errors, Each(""));
        break;
      }
      EXPECT_THAT(errors, Each(errors[0])) << "all ranks must report one error";
      const std::int64_t there = found(env);
      if (errors[0].empty()) {  // errors of the final cleanup are ignored
        EXPECT_EQ(there, 200);
      } else if (victim != 0 && code == EIO) {
        EXPECT_THAT(errors[0], AllOf(StartsWith("rank " + std::to_string(victim) + ": cannot use a file"),
                                     HasSubstr("Input/output error")));
      } else if (victim != 0) {
        EXPECT_THAT(errors[0],
                    AllOf(StartsWith("cannot save checkpoint '/run/checkpoints/iter_0000200': it needs"),
                          EndsWith("No space left on device")));
      }
      if (victim != 0) {
        EXPECT_EQ(there, errors[0].empty() ? 200 : 100);
        for (const auto& name : env.list(kRoot)) EXPECT_FALSE(name.starts_with(".tmp")) << name;
      }
      check_after(env, errors[0].empty());
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rank, RankFault, ::testing::Values(0, 1, 2));

// Power fails at every operation of any rank. Unsynced data is lost, or survives in part.
TEST(ShardedCrash, LeavesTheOldOrTheNewCheckpoint) {
  for (const auto survivors :
       {FaultEnv::Survivors::kAll, FaultEnv::Survivors::kSynced, FaultEnv::Survivors::kRandom}) {
    std::uint64_t operation = 0;
    for (;; ++operation) {
      SCOPED_TRACE(operation);
      FaultEnv env;
      ASSERT_THAT(save(ShardedSnapshot(100).snapshot, env), Each(""));
      env.crash_at(env.operations() + operation);
      const auto errors = save(ShardedSnapshot(200).snapshot, env, {.keep_last = 1});
      env.reboot(survivors, operation);
      const bool finished = errors == std::vector<std::string>(kRanks);
      check_after(env, finished);
      if (finished || HasFailure()) break;
    }
    EXPECT_GT(operation, 40U);
  }
}

}  // namespace
}  // namespace primus
