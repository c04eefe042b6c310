#include "turbo/linear/algorithm_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "base/files/file.h"
#include "base/temporary_folder.h"

namespace primus::turbo {
namespace {

class AlgorithmCacheTest : public ::testing::Test {
 protected:
  AlgorithmCache cache() const { return {folder_, "NVIDIA H200/x", "cublaslt-130100"}; }
  static AlgorithmChoice choice(std::uint64_t first) {
    return {.algorithm = {first, 0xffffffffffffffffULL, 3, 4, 5, 6, 7, 8},
            .microseconds = 12.5,
            .next_microseconds = 13.25,
            .of = 8};
  }
  // Returns the choice of the cache for a key. measurements_ counts how often algorithms were measured.
  std::optional<AlgorithmChoice> ask(AlgorithmCache& cache, const std::string& key, std::uint64_t measured,
                                     bool usable = true) {
    return cache.choose(
        key, [&](const AlgorithmChoice&) { return usable; },
        [&]() -> std::optional<AlgorithmChoice> {
          ++measurements_;
          return choice(measured);
        });
  }
  void write(const std::string& text) const { std::ofstream(cache().file()) << text; }
  std::string read() const { return read_file(cache().file()); }

  const primus::test::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path().string();
  int measurements_ = 0;
};

TEST_F(AlgorithmCacheTest, MeasuredAlgorithmsAreStored) {
  AlgorithmCache first = cache();
  EXPECT_EQ(ask(first, "a", 1), choice(1));
  EXPECT_EQ(ask(first, "a", 2), choice(1));
  EXPECT_EQ(ask(first, "b", 3), choice(3));
  AlgorithmCache second = cache();  // a second cache, as in another process
  EXPECT_EQ(ask(second, "a", 4), choice(1));
  EXPECT_EQ(ask(second, "b", 5), choice(3));
  EXPECT_EQ(measurements_, 2);
}

TEST_F(AlgorithmCacheTest, EachDeviceAndLibraryHasItsOwnFile) {
  EXPECT_EQ(std::filesystem::path(cache().file()).filename(), "matmul-NVIDIA_H200_x-cublaslt-130100.json");
  AlgorithmCache one = cache();
  ask(one, "a", 1);
  AlgorithmCache other(folder_, "NVIDIA H200/x", "cublaslt-130200");
  EXPECT_EQ(ask(other, "a", 2), choice(2));
}

TEST_F(AlgorithmCacheTest, ShapesAreMeasuredAgainIfTheLibraryRefusesTheStoredAlgorithm) {
  AlgorithmCache first = cache();
  ask(first, "a", 1);
  AlgorithmCache second = cache();
  EXPECT_EQ(ask(second, "a", 2, false), choice(2));
  AlgorithmCache third = cache();
  EXPECT_EQ(ask(third, "a", 3), choice(2));
}

// If no algorithm could be measured, nothing is stored, and the next call measures again.
TEST_F(AlgorithmCacheTest, NoFileIsWrittenWithoutMeasurements) {
  AlgorithmCache first = cache();
  const auto none = first.choose(
      "a", [](const AlgorithmChoice&) { return true; }, [] { return std::optional<AlgorithmChoice>(); });
  EXPECT_FALSE(none);
  EXPECT_EQ(ask(first, "a", 2), choice(2));
}

// If ranks start at the same time, only one rank measures, and all ranks use the choice of this rank.
TEST_F(AlgorithmCacheTest, RanksUseTheSameAlgorithm) {
  std::atomic<int> measurements{0};
  std::vector<std::optional<AlgorithmChoice>> got(6);
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < got.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      AlgorithmCache own = cache();
      got[rank] = own.choose(
          "a", [](const AlgorithmChoice&) { return true; },
          [&]() -> std::optional<AlgorithmChoice> {
            ++measurements;
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            return choice(rank + 1);
          });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(measurements, 1);
  for (const auto& one : got) EXPECT_EQ(one, got[0]);
}

// If the folder cannot be created, choices are kept only in memory.
TEST_F(AlgorithmCacheTest, WithoutACacheFolderShapesAreMeasuredInEachRun) {
  AlgorithmCache nowhere("/proc/primus", "device", "library");
  EXPECT_EQ(ask(nowhere, "a", 1), choice(1));
  EXPECT_EQ(ask(nowhere, "a", 2), choice(1));
}

// Files with invalid content are ignored and replaced.
TEST_F(AlgorithmCacheTest, ForeignFilesAreIgnored) {
  const std::string good(128, '1');
  for (const std::string& text : std::vector<std::string>{
           "", "not json", "[]",
           "{\"format\":1,\"choices\":{\"a\":{\"algorithm\":\"" + good +
               "\",\"microseconds\":1,\"next_microseconds\":1,\"of\":1}}}",
           R"({"format":2,"choices":[]})", R"({"format":2,"choices":{"a":7}})",
           R"({"format":2,"choices":{"a":{"algorithm":"12","microseconds":1,"next_microseconds":1,"of":1}}})",
           R"({"format":2,"choices":{"a":{"algorithm":")" + std::string(128, 'g') +
               R"(","microseconds":1,"next_microseconds":1,"of":1}}})",
           R"({"format":2,"choices":{"a":{"algorithm":")" + std::string(127, '1') +
               R"(-","microseconds":1,"next_microseconds":1,"of":1}}})",
           R"({"format":2,"choices":{"a":{"algorithm":")" + good +
               R"(","microseconds":-1,"next_microseconds":1,"of":1}}})",
           R"({"format":2,"choices":{"a":{"algorithm":")" + good +
               R"(","microseconds":1e999,"next_microseconds":1,"of":1}}})",
           R"({"format":2,"choices":{"a":{"algorithm":")" + good +
               R"(","microseconds":"1","next_microseconds":1,"of":1}}})",
           R"({"format":2,"choices":{"a":{"algorithm":")" + good +
               R"(","microseconds":1,"next_microseconds":1,"of":0}}})",
           R"({"format":2,"choices":{"a":{"algorithm":")" + good + R"(","microseconds":1,"of":1}}})",
           R"({"format":2,"choices":{"a":{"algorithm":")" + good +
               R"(","microseconds":1,"next_microseconds":-1,"of":1}}})",
           R"({"format":2,"choices":{"a":{"algorithm":")" + good +
               R"(","microseconds":1,"next_microseconds":1,"of":99999999999}}})",
           std::string(100000, '['), std::string("\0\xff", 2)}) {
    SCOPED_TRACE(text.substr(0, 120));
    write(text);
    AlgorithmCache one = cache();
    EXPECT_EQ(ask(one, "a", 9), choice(9));
    AlgorithmCache next = cache();  // because the file was rewritten
    EXPECT_EQ(ask(next, "a", 10), choice(9));
  }
}

// A damaged file never makes choose() throw: each call returns a stored or a measured choice.
TEST_F(AlgorithmCacheTest, DamagedBytesNeverThrow) {
  AlgorithmCache first = cache();
  ask(first, "a", 1);
  ask(first, "b", 2);
  const std::string whole = read();
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    std::string text = whole;
    for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    if (round % 3 == 0) text.resize(random() % text.size());
    write(text);
    AlgorithmCache damaged = cache();
    EXPECT_TRUE(ask(damaged, "a", 5));
  }
}

}  // namespace
}  // namespace primus::turbo
