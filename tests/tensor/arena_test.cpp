#include "tensor/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/poison.h"

namespace primus {
namespace {

constexpr std::int64_t kUnit = Arena::kAlignment;

// Any address works, because an arena never accesses its memory. (AddressSanitizer's shadow memory lies
// below.)
char* base() { return reinterpret_cast<char*>(std::uintptr_t{1} << 46); }

TEST(Arena, BlocksAreAlignedAndAddressedFromTheBase) {
  Arena arena("stash", base(), 10 * kUnit);
  const auto a = arena.allocate(1), b = arena.allocate(kUnit + 1), c = arena.allocate(0);
  EXPECT_EQ(a.offset, 0);
  EXPECT_EQ(b.offset, kUnit);
  EXPECT_EQ(c.offset, 3 * kUnit);
  EXPECT_EQ(b.address, base() + b.offset);
  EXPECT_EQ(b.bytes, kUnit + 1);
  EXPECT_EQ(arena.in_use(), 4 * kUnit);
  EXPECT_EQ(arena.high_water(), 4 * kUnit);
}

TEST(Arena, FreeRunsMergeWithBothNeighbours) {
  Arena arena("stash", base(), 4 * kUnit);
  const auto a = arena.allocate(kUnit), b = arena.allocate(kUnit), c = arena.allocate(kUnit),
             d = arena.allocate(kUnit);
  // The last release merges with the free runs on both sides, in every order of release.
  arena.release(a);
  arena.release(c);
  arena.release(b);
  EXPECT_EQ(arena.allocate(3 * kUnit).offset, 0);
  arena.release(d);
  EXPECT_EQ(arena.allocate(kUnit).offset, 3 * kUnit);
}

TEST(Arena, TheSmallestRunThatFitsIsTaken) {
  Arena arena("stash", base(), 100 * kUnit);
  const auto large = arena.allocate(5 * kUnit);
  arena.allocate(kUnit);
  const auto small = arena.allocate(2 * kUnit);
  arena.allocate(kUnit);
  arena.release(large);
  arena.release(small);
  EXPECT_EQ(arena.allocate(2 * kUnit).offset, small.offset);
  EXPECT_EQ(arena.allocate(3 * kUnit).offset, large.offset);
}

TEST(Arena, OutOfMemoryErrorsNameTheArena) {
  Arena arena("scratch", base(), 2 * kUnit);
  arena.allocate(kUnit);
  try {
    arena.allocate(kUnit + 1);
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_NE(what.find("'scratch'"), std::string::npos) << what;
    EXPECT_NE(what.find(std::to_string(kUnit + 1)), std::string::npos) << what;
  }
  EXPECT_EQ(arena.allocate(kUnit).offset, kUnit);  // still works
}

TEST(Arena, FragmentedFreeMemoryIsNotEnough) {
  Arena arena("stash", base(), 3 * kUnit);
  const auto a = arena.allocate(kUnit);
  arena.allocate(kUnit);
  const auto c = arena.allocate(kUnit);
  arena.release(a);
  arena.release(c);
  EXPECT_THROW(arena.allocate(2 * kUnit), Error);
}

// Runs random allocations and releases, which depend only on the seed. Returns the offsets.
std::vector<std::int64_t> run_program(Arena& arena, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Arena::Block> live;
  std::vector<std::int64_t> offsets;
  for (int step = 0; step < 2000; ++step) {
    if (live.empty() || random() % 100 < 52) {
      live.push_back(arena.allocate(static_cast<std::int64_t>(random() % 20000)));
      offsets.push_back(live.back().offset);
    } else {
      const std::size_t victim = random() % live.size();
      arena.release(live[victim]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
    }
  }
  for (const auto& block : live) arena.release(block);
  return offsets;
}

TEST(Arena, MeasuringReportsTheExactSize) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    Arena measured("stash");
    EXPECT_TRUE(measured.measuring());
    const auto offsets = run_program(measured, seed);
    EXPECT_EQ(measured.in_use(), 0);

    Arena exact("stash", base(), measured.high_water());
    EXPECT_EQ(run_program(exact, seed), offsets);
    EXPECT_EQ(exact.high_water(), measured.high_water());

    Arena tight("stash", base(), measured.high_water() - 1);
    EXPECT_THROW(run_program(tight, seed), Error) << seed;
  }
}

// A model with n layers leaves about n holes. With a hundred thousand layers, visiting all holes for each
// block would take minutes.
TEST(Arena, ManyHolesDoNotSlowAllocation) {
  constexpr std::int64_t kHoles = 200'000;
  Arena arena("persistent");
  std::vector<Arena::Block> blocks;
  for (std::int64_t i = 0; i < 2 * kHoles; ++i) blocks.push_back(arena.allocate(kUnit));
  for (std::size_t i = 0; i < blocks.size(); i += 2) arena.release(blocks[i]);
  const std::int64_t end = arena.high_water();
  for (std::int64_t i = 0; i < kHoles; ++i) EXPECT_EQ(arena.allocate(2 * kUnit).offset, end + 2 * i * kUnit);
  for (std::int64_t i = 0; i < kHoles; ++i) EXPECT_EQ(arena.allocate(1).offset, 2 * i * kUnit);
}

TEST(Arena, LiveBlocksNeverOverlap) {
  std::mt19937 random(7);
  Arena arena("stash", base(), std::int64_t{1} << 24);
  std::vector<Arena::Block> live;
  for (int step = 0; step < 3000; ++step) {
    if (live.empty() || random() % 2 == 0) {
      const auto block = arena.allocate(static_cast<std::int64_t>(random() % 4000));
      for (const auto& other : live) {
        const std::int64_t end = block.offset + std::max<std::int64_t>(block.bytes, 1);
        const std::int64_t other_end = other.offset + std::max<std::int64_t>(other.bytes, 1);
        ASSERT_TRUE(end <= other.offset || other_end <= block.offset);
      }
      live.push_back(block);
    } else {
      const std::size_t victim = random() % live.size();
      arena.release(live[victim]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
    }
  }
}

// A plain search by the arena's rule: take the smallest hole that is large enough, and the first of equal
// holes. If no hole is large enough, take the open end.
TEST(Arena, ChoosesTheSameBlocksAsALinearSearch) {
  for (const std::int64_t capacity : {std::int64_t{0}, 400 * kUnit}) {
    Arena arena("stash", capacity > 0 ? base() : nullptr, capacity);
    const std::int64_t end = capacity > 0 ? capacity : std::int64_t{1} << 60;
    std::vector<Arena::Block> blocks;  // in the order of their offsets
    std::mt19937 random(1);
    const auto units = [](const Arena::Block& b) { return (b.bytes + kUnit - 1) / kUnit * kUnit; };
    for (int step = 0; step < 5000; ++step) {
      if (random() % 5 < 2 && !blocks.empty()) {
        const auto victim = blocks.begin() + static_cast<std::ptrdiff_t>(random() % blocks.size());
        arena.release(*victim);
        blocks.erase(victim);
        continue;
      }
      const std::int64_t bytes = 1 + static_cast<std::int64_t>(random() % 12) * kUnit;
      const std::int64_t need = units({.bytes = bytes});
      std::int64_t at = 0, expected = -1, smallest = 0;
      for (const Arena::Block& b : blocks) {
        const std::int64_t hole = b.offset - at;
        if (hole >= need && (expected < 0 || hole < smallest)) {
          expected = at;
          smallest = hole;
        }
        at = b.offset + units(b);
      }
      if (expected < 0 && end - at >= need) expected = at;
      if (expected < 0) {
        EXPECT_THROW(arena.allocate(bytes), Error);
        continue;
      }
      const Arena::Block block = arena.allocate(bytes);
      ASSERT_EQ(block.offset, expected) << step;
      blocks.insert(std::upper_bound(blocks.begin(), blocks.end(), block,
                                     [](const auto& a, const auto& b) { return a.offset < b.offset; }),
                    block);
    }
  }
}

#ifdef PRIMUS_ADDRESS_SANITIZER
TEST(ArenaDeathTest, OnlyLiveBytesMayBeTouched) {
  const std::unique_ptr<void, void (*)(void*)> memory(std::aligned_alloc(kUnit, 4 * kUnit), std::free);
  volatile char* bytes = static_cast<char*>(memory.get());
  {
    Arena arena("stash", memory.get(), 4 * kUnit);
    const auto block = arena.allocate(100);
    bytes[99] = 1;
    EXPECT_DEATH(bytes[100] = 1, "use-after-poison");
    arena.release(block);
    EXPECT_DEATH(bytes[0] = 1, "use-after-poison");
  }
  bytes[100] = 1;  // the memory belongs to its owner again
}
#endif

}  // namespace
}  // namespace primus
