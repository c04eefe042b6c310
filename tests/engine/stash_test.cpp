// Tests that the stash allocates blocks from an arena and frees each with its last owner.
#include "engine/runtime/stash.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/error.h"

namespace primus::engine {
namespace {

constexpr std::int64_t kUnit = Arena::kAlignment;

// Returns fake addresses of an arena, which are never dereferenced. (AddressSanitizer's shadow memory lies
// below them.)
void* at(std::int64_t units) {
  return reinterpret_cast<void*>((std::uintptr_t{1} << 46) + static_cast<std::uintptr_t>(units * kUnit));
}

void* address_of(const Buffer& buffer) { return buffer.view(DType::kF32, {1}).data; }

TEST(Stash, ABlockLivesUntilItsLastOwnerIsDestroyed) {
  Arena arena("stash", at(0), 8 * kUnit);
  Stash stash(arena);
  EXPECT_TRUE(stash.empty());
  Buffer first = stash.allocate(kUnit + 1);
  EXPECT_TRUE(first);
  EXPECT_TRUE(first.unique());
  EXPECT_EQ(arena.in_use(), 2 * kUnit);
  {
    const Buffer second = first;
    EXPECT_FALSE(first.unique());
    EXPECT_FALSE(second.unique());
    EXPECT_EQ(address_of(second), address_of(first));
    first.reset();
    EXPECT_FALSE(first);
    EXPECT_TRUE(second.unique());
    EXPECT_EQ(arena.in_use(), 2 * kUnit) << "the second owner keeps the block";
  }
  EXPECT_TRUE(stash.empty());
}

// Moving a buffer transfers the block without freeing it.
TEST(Stash, MovingAnOwnerKeepsTheBlock) {
  Arena arena("stash", at(0), 8 * kUnit);
  Stash stash(arena);
  Buffer from = stash.allocate(kUnit);
  void* const address = address_of(from);
  Buffer to = std::move(from);
  EXPECT_FALSE(from);  // NOLINT(bugprone-use-after-move): a moved buffer is empty
  EXPECT_TRUE(to.unique());
  EXPECT_EQ(address_of(to), address);
  // Assignment releases the block of the target.
  Buffer other = stash.allocate(kUnit);
  other = std::move(to);
  EXPECT_EQ(address_of(other), address);
  EXPECT_EQ(arena.in_use(), kUnit);
  const Buffer& same = other;
  other = same;
  EXPECT_TRUE(other.unique()) << "self-assignment keeps the block";
  other = {};
  EXPECT_TRUE(stash.empty());
}

TEST(Stash, AViewHasTheRequestedTypeAndShape) {
  Arena arena("stash", at(0), 8 * kUnit);
  Stash stash(arena);
  const Buffer filler = stash.allocate(3 * kUnit), buffer = stash.allocate(24);
  const Tensor whole = buffer.view(DType::kF32, {2, 3});
  EXPECT_EQ(whole.data, at(3));
  EXPECT_EQ(whole.dtype, DType::kF32);
  EXPECT_EQ(whole.shape, (Shape{2, 3}));
  EXPECT_EQ(buffer.view(DType::kBF16, {12}).data, whole.data);
}

// Freed blocks are allocated again at the same addresses. Recorded graphs replay microbatches and rely on
// equal addresses.
TEST(Stash, ReleasedBlocksAreReused) {
  Arena arena("stash", at(0), 6 * kUnit);
  Stash stash(arena);
  const auto addresses = [&] {
    std::vector<Buffer> buffers;
    std::vector<void*> found;
    for (const std::int64_t units : {1, 3, 2}) {
      buffers.push_back(stash.allocate(units * kUnit));
      found.push_back(address_of(buffers.back()));
    }
    return found;
  };
  const std::vector<void*> first = addresses();
  EXPECT_EQ(first, (std::vector<void*>{at(0), at(1), at(4)}));
  EXPECT_EQ(addresses(), first);
  EXPECT_TRUE(stash.empty());
  EXPECT_EQ(arena.high_water(), 6 * kUnit);
}

// Owners stay valid while the stash's table of blocks, into which they point, grows.
TEST(Stash, AllocatesManyBlocksAtOnce) {
  Arena arena("stash", at(0), 4096 * kUnit);
  Stash stash(arena);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 4096; ++i) buffers.push_back(stash.allocate(1));
  for (std::int64_t i = 0; i < 4096; ++i) {
    ASSERT_TRUE(buffers[static_cast<std::size_t>(i)].unique()) << i;
    ASSERT_EQ(address_of(buffers[static_cast<std::size_t>(i)]), at(i));
  }
  for (std::size_t i = 0; i < buffers.size(); i += 2) buffers[i].reset();
  EXPECT_EQ(arena.in_use(), 2048 * kUnit);
  buffers.clear();
  EXPECT_TRUE(stash.empty());
}

TEST(Stash, OutOfMemoryIsAnErrorWithoutSideEffects) {
  Arena arena("stash", at(0), 2 * kUnit);
  Stash stash(arena);
  Buffer held = stash.allocate(kUnit);
  EXPECT_THROW(stash.allocate(kUnit + 1), Error);
  EXPECT_EQ(arena.in_use(), kUnit);
  EXPECT_TRUE(held.unique());
  const Buffer rest = stash.allocate(kUnit);
  EXPECT_EQ(address_of(rest), at(1));
  held.reset();
  EXPECT_EQ(arena.in_use(), kUnit) << "the block of the remaining owner";
}

// A measuring stash counts the memory that a real one needs, and returns no addresses.
TEST(Stash, MeasuringFindsTheRealSize) {
  const auto run = [](Stash& stash) {
    const Buffer a = stash.allocate(5 * kUnit);
    Buffer b = stash.allocate(2 * kUnit);
    const Buffer c = b;
    b = stash.allocate(kUnit);
    return stash.measuring() ? nullptr : address_of(c);
  };
  Arena measured("stash");
  Stash measuring(measured);
  EXPECT_TRUE(measuring.measuring());
  EXPECT_EQ(address_of(measuring.allocate(1)), nullptr);
  run(measuring);
  EXPECT_TRUE(measuring.empty());
  ASSERT_EQ(measured.high_water(), 8 * kUnit);
  Arena arena("stash", at(0), measured.high_water());
  Stash stash(arena);
  EXPECT_FALSE(stash.measuring());
  EXPECT_EQ(run(stash), at(5));
  Arena small("stash", at(0), measured.high_water() - kUnit);
  Stash too_small(small);
  EXPECT_THROW(run(too_small), Error);
  EXPECT_TRUE(too_small.empty()) << "unwinding must free all blocks";
}

TEST(Stash, AnEmptyBufferHasNoView) {
  Buffer buffer;
  EXPECT_FALSE(buffer);
  EXPECT_FALSE(buffer.unique());
  buffer.reset();
  EXPECT_THROW(buffer.view(DType::kF32, {1}), std::logic_error);
}

}  // namespace
}  // namespace primus::engine
