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

// Test tensors that are in memory, and one tensor that a function fills.
struct MixedTensors : TestTensors {
  MixedTensors() {
    add("large", DType::kF32, {3, 1 << 20}, 1);  // more than two pieces
    add("odd", DType::kI8, {13}, 2);
    add("empty", DType::kF32, {0}, 3);
    add("filled", DType::kF32, {2, 1 << 20}, 4);
    sources[3].data = nullptr;
    sources[3].fill = [this](std::uint64_t offset, std::span<std::byte> out) {
      filled += out.size();
      std::memcpy(out.data(), storage[3].data() + offset, out.size());
    };
  }
  void change() {
    for (auto& bytes : storage) std::ranges::fill(bytes, std::byte{0xee});
  }
  std::atomic<std::uint64_t> filled = 0;
};

std::vector<std::byte> read(const TensorSource& source, std::uint64_t offset, std::uint64_t size) {
  std::vector<std::byte> out(size);
  source.fill(offset, out);
  return out;
}
std::vector<std::byte> read(const TensorSource& source) { return read(source, 0, source.held_bytes()); }

TEST(SnapshotBuffer, CopiesWithManyThreads) {
  SnapshotBuffer buffer;
  for (int round = 0; round < 3; ++round) {
    MixedTensors tensors;
    const auto was = tensors.storage;
    buffer.lay_out(tensors.sources);
    {
      std::vector<std::jthread> hands;
      for (int i = 0; i < 3; ++i) hands.emplace_back([&] { buffer.copy(); });
    }
    tensors.change();
    const auto sources = buffer.sources();
    ASSERT_EQ(sources.size(), 4U);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(sources[i].name, tensors.sources[i].name);
      EXPECT_EQ(read(sources[i]), was[i]);
    }
    EXPECT_EQ(tensors.filled, was[3].size());
  }
}

// Data that is read before the tensors change is not copied. All other data is copied once.
TEST(SnapshotBuffer, CopiesUnreadDataInTime) {
  MixedTensors tensors;
  const auto was = tensors.storage;
  SnapshotBuffer buffer;
  enum class InTime { kLittle, kMax, kAll };
  for (const InTime in_time : {InTime::kLittle, InTime::kMax, InTime::kAll}) {
    tensors.storage = was;
    for (std::size_t i : {0, 1, 2}) tensors.sources[i].data = tensors.storage[i].data();
    tensors.filled = 0;
    buffer.lay_out(tensors.sources);
    const auto sources = buffer.sources();
    const std::uint64_t half = SnapshotBuffer::kPieceBytes;
    EXPECT_EQ(read(sources[3], 0, half), std::vector(was[3].begin(), was[3].begin() + half));
    if (in_time != InTime::kLittle) {
      for (const std::size_t i : {0, 1}) EXPECT_EQ(read(sources[i]), was[i]);
    }
    if (in_time == InTime::kAll) read(sources[3], half, half);
    buffer.before_change();
    EXPECT_EQ(buffer.was_late(), in_time == InTime::kLittle);
    tensors.change();
    EXPECT_EQ(tensors.filled, was[3].size()) << "each byte once";
    if (in_time == InTime::kAll) continue;
    EXPECT_EQ(read(sources[3], half, half), std::vector(was[3].begin() + half, was[3].end()));
    if (in_time == InTime::kMax) continue;
    for (const std::size_t i : {0, 1}) EXPECT_EQ(read(sources[i]), was[i]);
    // The next step changes the tensors again, after all data was read.
    buffer.before_change();
    EXPECT_TRUE(buffer.was_late());
  }
}

// If the axes have another order in the file, a tensor is copied even after it was read: assembling slabs may
// read a tensor twice.
TEST(SnapshotBuffer, KeepsDataThatIsReadTwice) {
  TestTensors tensors;
  tensors.add("turned", DType::kF32, {2, 3, 4}, 1);
  tensors.sources[0].order = {.dims = {2, 4, 3}, .axes = {0, 2, 1}};
  const auto was = tensors.storage[0];
  SnapshotBuffer buffer;
  buffer.lay_out(tensors.sources);
  const auto sources = buffer.sources();
  EXPECT_EQ(read(sources[0]), was);
  buffer.before_change();
  EXPECT_FALSE(buffer.was_late());
  std::ranges::fill(tensors.storage[0], std::byte{0xee});
  EXPECT_EQ(read(sources[0]), was);
}

// Training waits for a reader that is in the middle of a tensor, but not for one that has yet to start.
TEST(SnapshotBuffer, WaitsForReadersOfTheOriginalTensors) {
  TestTensors tensors;
  tensors.add("a", DType::kF32, {1000}, 1);
  tensors.add("b", DType::kF32, {1000}, 2);
  const auto was = tensors.storage;
  std::latch entered{1}, release{1};
  tensors.sources[0].data = nullptr;
  tensors.sources[0].fill = [&](std::uint64_t, std::span<std::byte> out) {
    entered.count_down();
    release.wait();
    std::ranges::copy(tensors.storage[0], out.begin());
  };
  SnapshotBuffer buffer;
  buffer.lay_out(tensors.sources);
  const auto sources = buffer.sources();
  std::vector<std::byte> first, second;
  std::jthread reader([&] {
    first = read(sources[0]);
    second = read(sources[1]);
  });
  entered.wait();
  std::atomic<bool> changed = false;
  std::jthread training([&] {
    buffer.before_change();
    for (auto& bytes : tensors.storage) std::ranges::fill(bytes, std::byte{0xee});
    changed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(changed);
  release.count_down();
  training.join();
  reader.join();
  EXPECT_EQ(first, was[0]);
  EXPECT_EQ(second, was[1]);
}

TEST(SnapshotBuffer, ErrorsReachEveryCopierAndReader) {
  TestTensors tensors;
  tensors.add("a", DType::kF32, {3}, 1);
  tensors.sources[0].data = nullptr;
  tensors.sources[0].fill = [](std::uint64_t, std::span<std::byte>) { throw invalid("device lost"); };
  SnapshotBuffer buffer;
  buffer.lay_out(tensors.sources);
  EXPECT_EQ(error_of([&] { read(buffer.sources()[0]); }), "device lost");
  EXPECT_EQ(error_of([&] { buffer.copy(); }), "device lost");
  EXPECT_EQ(error_of([&] { buffer.copy(); }), "device lost");
  EXPECT_EQ(error_of([&] { read(buffer.sources()[0]); }), "device lost");
}

// The tensors change right after wait_copied(), as in an optimizer update. The file has the values from
// before the change.
TEST(AsyncWriter, SavesTheTensorsAtTheTimeOfTheCall) {
  FaultEnv env;
  AsyncWriter writer(kRoot, {}, env);
  for (std::int64_t iteration = 1; iteration <= 20; ++iteration) {
    TestSnapshot changing(iteration);
    writer.save(changing.snapshot,
                iteration % 2 == 0 ? AsyncWriter::Sources::kLive : AsyncWriter::Sources::kOnDevice);
    writer.wait_copied();
    for (auto* tensors : {&changing.model, &changing.optimizer}) {
      for (auto& bytes : tensors->storage) std::ranges::fill(bytes, std::byte{0xee});
    }
    writer.wait();
    EXPECT_EQ(writer.last_saved(), iteration);
    TestSnapshot(iteration).expect_equal(*find_resume_point(kRoot, Validation::kFull, env).reader);
  }
}

TEST(AsyncWriter, StableSourcesAreWrittenWithoutACopy) {
  FaultEnv env;
  AsyncWriter writer(kRoot, {}, env);
  const TestSnapshot saved(5);
  writer.save(saved.snapshot, AsyncWriter::Sources::kStable);
  writer.wait_copied();
  EXPECT_EQ(writer.last_saved(), 5) << "the tensors are in use until everything is written";
  std::uint64_t bytes = 0;
  for (const auto* tensors : {&saved.snapshot.model, &saved.snapshot.optimizer}) {
    for (const TensorSource& tensor : *tensors) bytes += tensor.bytes();
  }
  EXPECT_EQ(writer.last_written().all, bytes);
  EXPECT_EQ(writer.last_written().direct, 0U) << "files in memory cannot bypass a page cache";
  writer.wait();
  saved.expect_equal(*find_resume_point(kRoot, Validation::kFull, env).reader);
}

// Blocks the writer thread inside a save, so that tests can check what the caller sees meanwhile.
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

TEST(AsyncWriter, SaveReturnsAtOnceAndOnlyOneSaveIsInFlight) {
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
  // When the disk has enough space again, saving works.
  env.set_capacity(1 << 20);
  writer.save(second.snapshot);
  writer.wait();
  EXPECT_EQ(find_resume_point(kRoot, Validation::kFull, env).reader->iteration(), 2);
}

TEST(AsyncWriter, DestructionWaitsForTheSaveInFlight) {
  FaultEnv env;
  const TestSnapshot last(9);
  { AsyncWriter(kRoot, {}, env).save(last.snapshot); }
  last.expect_equal(*find_resume_point(kRoot, Validation::kFull, env).reader);
}

}  // namespace
}  // namespace primus
