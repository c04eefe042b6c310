#include "lm/decode/page_table.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <optional>

#include "base/random/random.h"

namespace primus {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens numbers(std::int32_t count) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

struct Sequence {
  PageTable::Pages pages;
  Tokens tokens;
};

// Adds a sequence, and writes only the tokens that no shared page holds. Returns the number of shared tokens,
// or -1 if too few pages are free.
std::int64_t read(PageTable& table, Sequence& s, const Tokens& tokens) {
  std::vector<PageTable::Copy> copies;
  const std::int64_t known = table.share(tokens, s.pages);
  if (!table.grow(s.pages, known, std::ssize(tokens), copies)) {
    table.release(s.pages);
    return -1;
  }
  table.write(s.pages, known, std::span(tokens).subspan(static_cast<std::size_t>(known)));
  s.tokens = tokens;
  return known;
}

// Keys and values depend on the model, so texts of different models share no pages.
TEST(PageTable, ModelsShareNoPages) {
  PageTable table(8, 4);
  const Tokens tokens = numbers(10);
  std::vector<PageTable::Copy> copies;
  for (const std::size_t model : {0U, 1U, 2U}) {
    EXPECT_EQ(table.match(tokens, model), 0);
    PageTable::Pages pages;
    ASSERT_EQ(table.share(tokens, pages, model), 0);
    ASSERT_TRUE(table.grow(pages, 0, 6 + static_cast<std::int64_t>(model), copies));
    table.write(pages, 0, std::span(tokens).first(6 + model), model);
    table.release(pages);
  }
  for (const std::size_t model : {0U, 1U, 2U}) {
    EXPECT_EQ(table.match(tokens, model), 6 + static_cast<std::int64_t>(model));
    PageTable::Pages pages;
    EXPECT_EQ(table.share(tokens, pages, model), 6 + static_cast<std::int64_t>(model));
    table.release(pages);
  }
  // The pages of a model are reused for another one.
  PageTable::Pages pages;
  ASSERT_TRUE(table.grow(pages, 0, 32, copies));
  table.write(pages, 0, numbers(32), 3);
  for (const std::size_t model : {0U, 1U, 2U}) EXPECT_EQ(table.match(tokens, model), 0);
  EXPECT_EQ(table.match(tokens, 3), 10);
}

TEST(PageTable, TextsWithACommonPrefixSharePages) {
  PageTable table(10, 4);
  Sequence a, b;
  EXPECT_EQ(read(table, a, numbers(10)), 0);
  EXPECT_EQ(table.free(), 7);
  Tokens other = numbers(10);
  other[9] = 99;
  EXPECT_EQ(table.match(other), 9);
  EXPECT_EQ(read(table, b, other), 9);
  EXPECT_EQ(table.free(), 6) << "two pages are shared, and the third is copied";
  EXPECT_EQ(a.pages[1], b.pages[1]);
  EXPECT_NE(a.pages[2], b.pages[2]);
  table.release(a.pages);
  EXPECT_EQ(table.free(), 7) << "the pages of b are in use";
  EXPECT_EQ(table.match(numbers(10)), 10) << "the last page of a was not reused";
  table.release(b.pages);
  EXPECT_EQ(table.free(), 10);
}

TEST(PageTable, SharedPagesAreCopiedBeforeAWrite) {
  PageTable table(10, 4);
  Sequence a, b;
  read(table, a, numbers(6));
  EXPECT_EQ(table.share(numbers(6), b.pages), 6);
  std::vector<PageTable::Copy> copies;
  ASSERT_TRUE(table.grow(a.pages, 6, 7, copies));
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].from, b.pages[1]);
  EXPECT_EQ(copies[0].to, a.pages[1]);
  copies.clear();
  ASSERT_TRUE(table.grow(b.pages, 6, 7, copies));
  EXPECT_TRUE(copies.empty()) << "only b uses the page now";
}

TEST(PageTable, ReusesTheLongestFreePagesFirst) {
  PageTable table(4, 4);
  Sequence a, b, c;
  read(table, a, numbers(8));
  read(table, b, {50, 51, 52, 53, 54});
  table.release(a.pages);
  table.release(b.pages);
  EXPECT_EQ(read(table, c, {70}), 0);
  EXPECT_EQ(table.match(numbers(8)), 4) << "only the last page of a was reused";
  EXPECT_EQ(table.match(Tokens{50, 51, 52, 53, 54}), 5);
}

TEST(PageTable, ChangesNothingIfTooFewPagesAreFree) {
  PageTable table(3, 4);
  Sequence a;
  read(table, a, numbers(6));
  const PageTable::Pages before = a.pages;
  std::vector<PageTable::Copy> copies;
  EXPECT_FALSE(table.grow(a.pages, 6, 13, copies));
  EXPECT_EQ(a.pages, before);
  EXPECT_TRUE(copies.empty());
  EXPECT_EQ(table.free(), 1);
  EXPECT_TRUE(table.grow(a.pages, 6, 12, copies));
}

// Compares with a model of the memory: at any time, each sequence's pages hold the tokens that it has read.
TEST(PageTable, PagesContainTheTokensOfTheirSequences) {
  constexpr std::int64_t kPages = 12, kPageTokens = 4;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const RandomStream random(seed, RandomPurpose::kTest);
    std::uint64_t draws = 0;
    const auto below = [&](std::uint32_t n) { return static_cast<std::int32_t>(random.below(draws++, n)); };
    PageTable table(kPages, kPageTokens);
    std::map<std::int64_t, std::int32_t> memory;  // token at page * kPageTokens + offset
    std::vector<std::optional<Sequence>> sequences(4);
    const auto address = [&](const Sequence& s, std::int64_t position) {
      return s.pages[static_cast<std::size_t>(position / kPageTokens)] * kPageTokens + position % kPageTokens;
    };
    const auto write = [&](Sequence& s, const Tokens& more) {
      std::vector<PageTable::Copy> copies;
      const std::int64_t length = std::ssize(s.tokens);
      if (!table.grow(s.pages, length, length + std::ssize(more), copies)) return false;
      for (const PageTable::Copy& copy : copies) {
        for (std::int64_t i = 0; i < kPageTokens; ++i)
          memory[copy.to * kPageTokens + i] = memory[copy.from * kPageTokens + i];
      }
      for (const std::int32_t token : more) {
        s.tokens.push_back(token);
        memory[address(s, std::ssize(s.tokens) - 1)] = token;
      }
      table.write(s.pages, length, more);
      return true;
    };
    for (int round = 0; round < 200; ++round) {
      std::optional<Sequence>& chosen = sequences[static_cast<std::size_t>(below(4))];
      Tokens tokens(static_cast<std::size_t>(1 + below(9)));
      // only two token values, so that many texts share their first tokens
      for (std::int32_t& token : tokens) token = below(2);
      if (!chosen) {
        Sequence s;
        const std::int64_t known = table.share(tokens, s.pages);
        s.tokens.assign(tokens.begin(), tokens.begin() + known);
        chosen = s;
      } else if (below(3) == 0 || !write(*chosen, tokens)) {
        table.release(chosen->pages);
        chosen.reset();
      }
      std::set<std::int32_t> held;
      for (const std::optional<Sequence>& s : sequences) {
        if (!s) continue;
        held.insert(s->pages.begin(), s->pages.end());
        for (std::int64_t i = 0; i < std::ssize(s->tokens); ++i)
          ASSERT_EQ(memory[address(*s, i)], s->tokens[static_cast<std::size_t>(i)]) << seed;
      }
      ASSERT_EQ(table.free(), kPages - std::ssize(held)) << seed;
    }
  }
}

}  // namespace
}  // namespace primus
