#include <algorithm>
#include <atomic>
#include <cerrno>
#include <latch>
#include <numeric>
#include <thread>

#include "base/fault_env.h"
#include "checkpoint_testing.h"

namespace primus {
namespace {

using ::testing::HasSubstr;

const Path kRoot = "/run/checkpoints";

TEST(SnapshotBuffer, CopiesWithManyHands) {
  TestTensors tensors;
  tensors.add("large", DType::kF32, {3, 1 << 20}, 1);  // over two chunks
  tensors.add("odd", DType::kI8, {13}, 2);
  tensors.add("empty", DType::kF32, {0}, 3);
  tensors.add("filled", DType::kF32, {70000}, 4);
  auto sources = tensors.sources;
  sources[3].data = nullptr;
  sources[3].fill = [&](std::uint64_t offset, std::span<std::byte> out) {
    std::memcpy(out.data(), tensors.storage[3].data() + offset, out.size());
  };
  SnapshotBuffer buffer;
  for (int round = 0; round < 3; ++round) {
    buffer.lay_out(sources);
    const auto capacity = buffer.capacity();
    {
      std::vector<std::jthread> hands;
      for (int i = 0; i < 3; ++i) hands.emplace_back([&] { buffer.copy(); });
    }
    const auto copied = buffer.copied();
    ASSERT_EQ(copied.size(), 4U);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(copied[i].name, sources[i].name);
      EXPECT_NE(copied[i].data, sources[i].data);
      EXPECT_EQ(std::memcmp(copied[i].data, tensors.storage[i].data(), tensors.storage[i].size()), 0);
    }
    EXPECT_EQ(buffer.capacity(), capacity) << "reused";
  }
}

TEST(SnapshotBuffer, ErrorsReachEveryCopier) {
  TestTensors tensors;
  tensors.add("a", DType::kF32, {3}, 1);
  tensors.sources[0].data = nullptr;
  tensors.sources[0].fill = [](std::uint64_t, std::span<std::byte>) { throw invalid("device lost"); };
  SnapshotBuffer buffer;
  buffer.lay_out(tensors.sources);
  EXPECT_EQ(error_of([&] { buffer.copy(); }), "device lost");
  EXPECT_EQ(error_of([&] { buffer.copy(); }), "device lost");
}

// The tensors change right after wait_copied(), as an optimizer would; what is saved is what they were.
TEST(AsyncWriter, SavesWhatTheTensorsWere) {
  FaultEnv env;
  AsyncWriter writer(kRoot, {}, env);
  for (std::int64_t iteration = 1; iteration <= 20; ++iteration) {
    TestSnapshot changing(iteration);
    writer.save(changing.snapshot);
    writer.wait_copied();
    for (auto* tensors : {&changing.model, &changing.optimizer}) {
      for (auto& bytes : tensors->storage) std::ranges::fill(bytes, std::byte{0xee});
    }
    writer.wait();
    EXPECT_EQ(writer.last_saved(), iteration);
    TestSnapshot(iteration).expect_equal(*find_resume_point(kRoot, Validation::kFull, env).reader);
  }
}

TEST(AsyncWriter, StableSourcesAreWrittenFromWhereTheyAre) {
  FaultEnv env;
  AsyncWriter writer(kRoot, {}, env);
  const TestSnapshot saved(5);
  writer.save(saved.snapshot, AsyncWriter::Sources::kStable);
  writer.wait_copied();
  EXPECT_EQ(writer.last_saved(), 5) << "they are in use until all is written";
  writer.wait();
  saved.expect_equal(*find_resume_point(kRoot, Validation::kFull, env).reader);
}

// Holds the writing thread inside a save, so that what the caller sees meanwhile can be tested.
struct HeldSnapshot : TestSnapshot {
  explicit HeldSnapshot(std::int64_t iteration) : TestSnapshot(iteration) {
    snapshot.model[0].data = nullptr;
    snapshot.model[0].fill = [this](std::uint64_t offset, std::span<std::byte> out) {
      entered.count_down();
      release.wait();
      std::memcpy(out.data(), model.storage[0].data() + offset, out.size());
    };
  }
  std::latch entered{1}, release{1};
};

TEST(AsyncWriter, SaveReturnsAtOnceAndOneIsInFlight) {
  FaultEnv env;
  AsyncWriter writer(kRoot, {}, env);
  HeldSnapshot held(1);
  writer.save(held.snapshot, AsyncWriter::Sources::kStable);
  held.entered.wait();
  EXPECT_FALSE(writer.last_saved());
  writer.check();
  std::atomic<bool> second_started = false;
  const TestSnapshot second(2);
  std::jthread next([&] {
    writer.save(second.snapshot, AsyncWriter::Sources::kLive);
    second_started = true;
    writer.wait_copied();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(second_started);
  held.release.count_down();
  next.join();
  writer.wait();
  EXPECT_EQ(writer.last_saved(), 2);
}

TEST(AsyncWriter, ErrorsSurfaceOnceAtTheNextCall) {
  FaultEnv env;
  AsyncWriter writer(kRoot, {}, env);
  const TestSnapshot first(1);
  writer.save(first.snapshot);
  writer.wait();
  env.set_capacity(10);
  const TestSnapshot second(2);
  const auto fail = [&] {
    writer.save(second.snapshot);
    writer.wait_copied();
  };
  fail();
  std::string error;
  while (error.empty()) error = error_of([&] { writer.check(); });
  EXPECT_THAT(error, HasSubstr("cannot save checkpoint"));
  EXPECT_EQ(error_of([&] { writer.check(); }), "");
  fail();
  EXPECT_THAT(error_of([&] { writer.wait(); }), HasSubstr("cannot save checkpoint"));
  fail();
  EXPECT_THAT(error_of([&] { writer.save(second.snapshot); }), HasSubstr("cannot save checkpoint"));
  EXPECT_EQ(writer.last_saved(), 1);
  // With room again, it goes on.
  env.set_capacity(1 << 20);
  writer.save(second.snapshot);
  writer.wait();
  EXPECT_EQ(find_resume_point(kRoot, Validation::kFull, env).reader->iteration(), 2);
}

TEST(AsyncWriter, TheEndWaitsForTheSaveInFlight) {
  FaultEnv env;
  const TestSnapshot last(9);
  { AsyncWriter(kRoot, {}, env).save(last.snapshot); }
  last.expect_equal(*find_resume_point(kRoot, Validation::kFull, env).reader);
}

}  // namespace
}  // namespace primus
