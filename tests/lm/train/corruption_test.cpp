// Tests of the parts of the checks for silent corruption. tests/fault/corruption_test.cpp has whole runs.
#include "lm/train/corruption/corruption.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "lm/train/corruption/golden_products.h"
#include "lm/train/corruption/replica_check.h"
#include "turbo/devices/devices.h"

namespace primus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string line(const std::string& copies, const std::string& name, int hash) {
  return copies + "\t" + name + "\t" + std::to_string(hash) + "\n";
}

TEST(Copies, TheRanksWithTheRarerBitsAreNamed) {
  std::vector<std::string> ranks(5);
  for (int rank = 0; rank < 5; ++rank) {
    ranks[static_cast<std::size_t>(rank)] =
        line("stage 0", "a weights", 7) + line("stage 0", "a exp_avg", rank == 3 ? 8 : 9);
  }
  bool copied = false;
  const ::primus::Corruption found = judge_copies(ranks, &copied);
  EXPECT_TRUE(copied);
  EXPECT_THAT(found.ranks, ElementsAre(3));
  EXPECT_EQ(found.text, "rank 3 was found to hold other bits of a exp_avg than 4 ranks with copies");
}

TEST(Copies, WithoutAMajorityAllAreNamed) {
  const ::primus::Corruption found = judge_copies({line("s", "a", 1), line("s", "a", 2)});
  EXPECT_THAT(found.ranks, ElementsAre(0, 1));
  EXPECT_THAT(found.text, HasSubstr("ranks 0 and 1 were found to hold different bits of a, and no majority"));
}

TEST(Copies, PartsOfOtherRanksAreNotCompared) {
  bool copied = true;
  const ::primus::Corruption found =
      judge_copies({line("shard 0 of 2", "a", 1), line("shard 1 of 2", "a", 2)}, &copied);
  EXPECT_FALSE(found.found());
  EXPECT_FALSE(copied);
}

TEST(Copies, AFindingIsSentAsText) {
  const ::primus::Corruption sent{.text = "a sentence", .ranks = {0, 12}};
  const ::primus::Corruption got = corruption_from(to_text(sent));
  EXPECT_EQ(got.text, sent.text);
  EXPECT_EQ(got.ranks, sent.ranks);
  EXPECT_THAT(to_text({}), IsEmpty());
  EXPECT_FALSE(corruption_from("").found());
  EXPECT_EQ(name_ranks({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more");
}

TEST(BitFlips, AreParsed) {
  const BitFlip flip = parse_bit_flip("gradient:12:300");
  EXPECT_EQ(flip.where, BitFlip::Where::kGradient);
  EXPECT_EQ(flip.rank, 12);
  EXPECT_EQ(flip.step, 300);
  for (const char* const wrong :
       {"", "parameter", "parameter:1", "parameter:-1:2", "weight:1:2", "product:1:2x"})
    EXPECT_THROW(parse_bit_flip(wrong), Error) << wrong;
}

TEST(GoldenProducts, FindADamagedOperand) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    engine::Rank rank(turbo::open_device({.kind = "cpu", .threads = 1}));
    rank.reserve({.persistent = 1 << 20, .stash = 1 << 20, .scratch = 1 << 20});
    DeviceHash hash(rank);
    GoldenProducts products(rank, compute, hash);
    ASSERT_TRUE(products.repeatable());
    EXPECT_TRUE(products.repeat());
    products.damage();
    EXPECT_FALSE(products.repeat());
    products.damage();
    EXPECT_TRUE(products.repeat());
  }
}

}  // namespace
}  // namespace primus
