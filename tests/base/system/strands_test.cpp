#include "base/system/strands.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace primus {
namespace {

// Adds its name to a list when it is destroyed.
struct Ends {
  std::vector<std::string>& list;
  std::string name;
  ~Ends() { list.push_back(name); }
};

TEST(Strands, AlternateAtEachYield) {
  Strands strands;
  std::string order;
  const auto piece = [&](char name, int parts) {
    for (int i = 0; i < parts; ++i) {
      order += name;
      EXPECT_EQ(strands.current(), name - 'a');
      strands.yield();
    }
  };
  strands.run([&] { piece('a', 3); }, [&] { piece('b', 5); });
  EXPECT_EQ(order, "abababbb");
  strands.run([&] { piece('a', 4); }, [&] { piece('b', 1); });
  EXPECT_EQ(order, "abababbbabaaa");
  EXPECT_FALSE(strands.running());
  strands.yield();  // without effect
  EXPECT_EQ(strands.current(), 0);
}

TEST(Strands, APieceWithoutYieldRunsWhole) {
  Strands strands;
  std::string order;
  strands.run([&] { order += 'a'; }, [&] { order += 'b'; });
  EXPECT_EQ(order, "ab");
}

TEST(Strands, AnErrorOfTheFirstPieceUnwindsTheSecond) {
  Strands strands;
  std::vector<std::string> ended;
  const auto run = [&] {
    strands.run(
        [&] {
          strands.yield();
          throw std::runtime_error("first");
        },
        [&] {
          const Ends ends{ended, "second"};
          strands.yield();
          ADD_FAILURE() << "continued after the other piece's error";
        });
  };
  try {
    run();
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "first");
  }
  EXPECT_EQ(ended, std::vector<std::string>{"second"});
}

TEST(Strands, AnErrorOfTheSecondPieceUnwindsTheFirst) {
  Strands strands;
  std::vector<std::string> ended;
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(strands.run(
                     [&] {
                       const Ends ends{ended, "first"};
                       strands.yield();
                       ADD_FAILURE() << "continued after the other piece's error";
                     },
                     [] { throw std::invalid_argument("second"); }),
                 std::invalid_argument);
  }
  EXPECT_EQ(ended, (std::vector<std::string>{"first", "first", "first"}));
  int runs = 0;
  strands.run([&] { ++runs; }, [&] { ++runs; });
  EXPECT_EQ(runs, 2);
}

TEST(Strands, TheSecondPieceDoesNotBeginAfterAnError) {
  Strands strands;
  EXPECT_THROW(strands.run([] { throw std::runtime_error("first"); }, [] { FAIL(); }), std::runtime_error);
}

// Errors that a piece catches itself do not concern the other piece.
TEST(Strands, EachPieceMayCatchItsOwnErrors) {
  Strands strands;
  std::string order;
  const auto piece = [&](char name) {
    for (int i = 0; i < 3; ++i) {
      try {
        throw name;
      } catch (char caught) {
        order += caught;
      }
      strands.yield();
    }
  };
  strands.run([&] { piece('a'); }, [&] { piece('b'); });
  EXPECT_EQ(order, "ababab");
}

// Each piece has a deep stack.
int depth(Strands& strands, int calls) {
  volatile char frame[1024];
  frame[0] = static_cast<char>(calls);
  if (calls == 0) {
    strands.yield();
    return frame[0];
  }
  return depth(strands, calls - 1) + 1;
}

TEST(Strands, HaveDeepStacks) {
  Strands strands;
  int a = 0, b = 0;
  strands.run([&] { a = depth(strands, 3000); }, [&] { b = depth(strands, 3000); });
  EXPECT_EQ(a, 3000);
  EXPECT_EQ(b, 3000);
}

}  // namespace
}  // namespace primus
