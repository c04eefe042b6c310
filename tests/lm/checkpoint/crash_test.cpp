// Tests crash consistency: wherever a save was interrupted, the next start finds the old checkpoint or the
// new one.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

#include "base/fault_env.h"
#include "base/files/piece_writer.h"
#include "base/terminal/terminal.h"
#include "checkpoint_testing.h"

namespace primus {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

const Path kRoot = "/run/checkpoints";

// Number of elements of a tensor that is written in two pieces, without the page cache if the file system
// supports this.
constexpr std::int64_t kLarge = 5 * PieceWriter::kPieceBytes / 4 / sizeof(float);

// Saves `next` into a root that holds `before`, crashes at every operation in turn, and checks what a restart
// finds.
void crash_everywhere(const std::vector<std::int64_t>& before, std::int64_t next, SaveOptions options,
                      FaultEnv::Survivors survivors, std::uint64_t seed, std::int64_t large = 0) {
  int crashes = 0;
  for (std::uint64_t operation = 0;; ++operation) {
    SCOPED_TRACE(operation);
    FaultEnv env;
    for (const auto iteration : before)
      CheckpointRoot(kRoot, {}, env).save(TestSnapshot(iteration, large).snapshot);
    env.crash_at(env.operations() + operation);
    bool finished = false;
    try {
      CheckpointRoot(kRoot, options, env).save(TestSnapshot(next, large).snapshot);
      finished = true;
    } catch (const SimulatedCrash&) {
      ++crashes;
    }
    env.reboot(survivors, seed + operation);

    const auto check = [&] {
      const ResumePoint point = find_resume_point(kRoot, Validation::kFull, env);
      EXPECT_TRUE(point.rejected.empty()) << "a partial checkpoint had a final name: " << point.rejected[0];
      if (before.empty() && !point.reader && !finished) return;
      ASSERT_TRUE(point.reader);
      const auto loaded = point.reader->iteration();
      EXPECT_TRUE((!before.empty() && loaded == before.back()) || loaded == next) << loaded;
      if (finished) {
        EXPECT_EQ(loaded, next);
      }
      TestSnapshot(loaded, large).expect_equal(*point.reader);
    };
    check();  // checks with a reader that changes nothing, before any cleanup
    CheckpointRoot(kRoot, options, env).recover();
    check();
    for (const auto& name : env.status(kRoot) ? env.list(kRoot) : std::vector<std::string>()) {
      EXPECT_FALSE(name.starts_with(".")) << name;
    }
    // The run resumes and saves again.
    CheckpointRoot(kRoot, options, env).save(TestSnapshot(next, large).snapshot);
    EXPECT_EQ(find_resume_point(kRoot, Validation::kFull, env).reader->iteration(), next);
    if (finished || ::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(crashes, 25) << "a save has more operations";
}

struct CrashCase {
  const char* name;
  FaultEnv::Survivors survivors;
  std::uint64_t seed;
};

class CrashTest : public ::testing::TestWithParam<CrashCase> {};

TEST_P(CrashTest, FirstSave) { crash_everywhere({}, 100, {}, GetParam().survivors, GetParam().seed); }
TEST_P(CrashTest, LaterSaveWithRetention) {
  crash_everywhere({100, 200}, 300, {.keep_last = 1}, GetParam().survivors, GetParam().seed);
}
TEST_P(CrashTest, SavingTheLatestAgain) {
  crash_everywhere({100, 200}, 200, {.keep_last = 2}, GetParam().survivors, GetParam().seed);
}
TEST_P(CrashTest, Shards) {
  crash_everywhere({100}, 200, {.keep_last = 2, .max_shard_bytes = 100}, GetParam().survivors,
                   GetParam().seed);
}

TEST(CrashBetweenPieces, LeavesTheOldOrTheNewCheckpoint) {
  crash_everywhere({100}, 200, {.keep_last = 1}, FaultEnv::Survivors::kRandom, 4000, kLarge);
}

INSTANTIATE_TEST_SUITE_P(EveryOperation, CrashTest,
                         ::testing::Values(CrashCase{"ProcessKilled", FaultEnv::Survivors::kAll, 0},
                                           CrashCase{"PowerLost", FaultEnv::Survivors::kSynced, 0},
                                           CrashCase{"SomeSurvives1", FaultEnv::Survivors::kRandom, 1000},
                                           CrashCase{"SomeSurvives2", FaultEnv::Survivors::kRandom, 2000},
                                           CrashCase{"SomeSurvives3", FaultEnv::Survivors::kRandom, 3000}),
                         [](const auto& param) { return param.param.name; });

// Logs renames and syncs of the root in their order.
class OrderedEnv : public FaultEnv {
 public:
  void rename(const Path& from, const Path& to) override {
    order.push_back("rename " + to.filename().string());
    FaultEnv::rename(from, to);
  }
  void sync_folder(const Path& folder) override {
    if (folder == kRoot) order.emplace_back("sync");
    FaultEnv::sync_folder(folder);
  }
  std::vector<std::string> order;
};

// A power failure may keep only the later of two renames. So the checkpoint must be durable before `latest`
// names it.
TEST(Publishing, TheCheckpointIsDurableBeforeLatestNamesIt) {
  OrderedEnv env;
  CheckpointRoot(kRoot, {}, env).save(TestSnapshot(100).snapshot);
  const auto at = [&](const std::string& what) {
    return std::ranges::find(env.order, what) - env.order.begin();
  };
  const auto published = at("rename iter_0000100"), named = at("rename latest");
  ASSERT_LT(published, named);
  ASSERT_LT(named, static_cast<std::ptrdiff_t>(env.order.size()));
  EXPECT_TRUE(std::find(env.order.begin() + published, env.order.begin() + named, "sync") !=
              env.order.begin() + named);
}

// An I/O error at any operation makes the save fail with an error and leaves the old checkpoint unchanged.
TEST(SaveErrors, AtEveryOperation) {
  for (const int code : {EIO, ENOSPC}) {
    for (std::uint64_t operation = 0;; ++operation) {
      SCOPED_TRACE(operation);
      FaultEnv env;
      CheckpointRoot(kRoot, {}, env).save(TestSnapshot(100).snapshot);
      const std::uint64_t failing = env.operations() + operation;
      env.fail_at(failing, code);
      CheckpointRoot root(kRoot, {.keep_last = 1}, env);
      const std::string error = error_of([&] { root.save(TestSnapshot(200).snapshot); });
      const bool failed = env.operations() > failing;
      if (!failed) env.fail_at(0, EIO);  // no operation is left: clears the fault
      const ResumePoint point = find_resume_point(kRoot, Validation::kFull, env);
      ASSERT_TRUE(point.reader);
      EXPECT_TRUE(point.rejected.empty());
      TestSnapshot(point.reader->iteration()).expect_equal(*point.reader);
      if (root.last_saved() == 200) {
        EXPECT_EQ(point.reader->iteration(), 200);
      } else {
        EXPECT_NE(error, "") << "a save that is not durable must say so";
      }
      if (!failed) break;
    }
  }
}

// The disk fills up after any number of bytes.
TEST(SaveErrors, DiskFull) {
  FaultEnv probe;
  CheckpointRoot(kRoot, {}, probe).save(TestSnapshot(100).snapshot);
  const auto size = 1'000'000 - [&] {
    probe.set_capacity(1'000'000);
    return probe.free_space("/");
  }();
  for (std::uint64_t room = 0; room < size; room += 37) {
    FaultEnv env;
    CheckpointRoot(kRoot, {}, env).save(TestSnapshot(100).snapshot);
    env.set_capacity(size + room);
    std::string error, hint;
    try {
      CheckpointRoot(kRoot, {}, env).save(TestSnapshot(200).snapshot);
    } catch (const FileError& failure) {
      EXPECT_TRUE(failure.out_of_space());
      error = failure.what();
      hint = failure.hint();
    }
    if (room < size - 100) {
      EXPECT_THAT(error, AllOf(HasSubstr("cannot save checkpoint '/run/checkpoints/iter_0000200': it needs"),
                               HasSubstr(human_bytes(static_cast<double>(room))), HasSubstr("are free")));
      EXPECT_THAT(hint, HasSubstr("iter_0000100 is intact"));
      EXPECT_EQ(env.free_space("/"), room) << "the failed save must free its space";
    }
    const auto point = find_resume_point(kRoot, Validation::kFull, env);
    EXPECT_EQ(point.reader->iteration(), error.empty() ? 200 : 100);
  }
}

// A full disk is also handled when another program fills it after free_space() was checked.
TEST(SaveErrors, DiskFilledByAnotherProgram) {
  FaultEnv env;
  CheckpointRoot root(kRoot, {}, env);
  root.save(TestSnapshot(100).snapshot);
  const TestSnapshot saved(200);
  Snapshot filling = saved.snapshot;
  filling.model[0].fill = [&, data = filling.model[0].data](std::uint64_t offset, std::span<std::byte> out) {
    env.set_capacity(10);
    std::memcpy(out.data(), static_cast<const std::byte*>(data) + offset, out.size());
  };
  filling.model[0].data = nullptr;
  const std::string error = error_of([&] { root.save(filling); });
  EXPECT_THAT(error,
              AllOf(HasSubstr("it needs"), HasSubstr("are free"), HasSubstr("No space left on device")));
  EXPECT_EQ(find_resume_point(kRoot, Validation::kFull, env).reader->iteration(), 100);
}

// A real process on a real file system gets SIGKILL at random times.
TEST(Kill, AtTwentyRandomInstants) {
  const TemporaryFolder folder;
  TestRandom random(4);
  // The times are spread over two saves, however long a save takes on this machine.
  const auto begin = std::chrono::steady_clock::now();
  CheckpointRoot(folder.path()).save(TestSnapshot(1, kLarge).snapshot);
  const auto save_time =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin).count();
  std::uint64_t latest_instant = 2 * static_cast<std::uint64_t>(save_time) + 1;
  std::int64_t reached = 1;
  // If the machine has become slower, adds rounds with later times.
  for (int round = 0; round < 20 || (reached == 1 && round < 30); ++round) {
    if (round >= 20) latest_instant *= 2;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        CheckpointRoot root(folder.path(), {.keep_last = 2});
        root.recover();
        for (std::int64_t iteration = reached + 1;; ++iteration)
          root.save(TestSnapshot(iteration, kLarge).snapshot);
      } catch (...) {
      }
      ::_exit(1);  // only the parent's signal may end this process
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(latest_instant)));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the save failed before the signal";

    const ResumePoint point = find_resume_point(folder.path());
    EXPECT_TRUE(point.rejected.empty());
    ASSERT_TRUE(point.reader);
    EXPECT_GE(point.reader->iteration(), reached) << "a durable checkpoint was lost";
    reached = point.reader->iteration();
    TestSnapshot(reached, kLarge).expect_equal(*point.reader);
  }
  EXPECT_GT(reached, 1) << "no child ever finished a save";
}

}  // namespace
}  // namespace primus
