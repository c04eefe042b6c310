// Tests how packed sequences are split into documents for cuDNN, on the emulated GPU.
#define PRIMUS_EMULATED_WARP 32
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "turbo/attention/gpu_documents.h"

namespace primus::turbo::emulated32 {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

struct Cut {
  std::int32_t left;  // 1 if our own kernel must compute the call
  std::vector<std::int32_t> lengths;
  std::vector<std::int32_t> of_q, of_tokens;  // where documents begin: in elements of q, and in tokens
};

Cut cut(const std::vector<std::int32_t>& first_key, std::int64_t seq, std::int64_t documents,
        std::int64_t chunk = 0) {
  std::vector<std::int32_t> result(static_cast<std::size_t>(cudnn_documents_bytes(documents)) / 4, -1);
  CutDocuments kernel{first_key.data(),
                      result.data(),
                      static_cast<std::int64_t>(first_key.size()),
                      seq,
                      chunk,
                      documents,
                      {10, 1, 1, 1, 1, 1, 1, 1}};
  ThreadPool pool(2);
  gpu::emulator::run(
      pool, {1, CutDocuments::kThreads, 32, 0},
      [](const void* arguments) { (*static_cast<const CutDocuments*>(arguments))(); }, &kernel);
  const auto at = [&](std::int64_t begin, std::int64_t count) {
    return std::vector<std::int32_t>(result.begin() + begin, result.begin() + begin + count);
  };
  return {result[0], at(1, documents), at(1 + documents, documents + 1),
          at(1 + documents + 4 * (documents + 1), documents + 1)};
}

// Documents of all sequences of the batch are numbered consecutively. The last document of a sequence ends
// with the sequence.
TEST(CutDocuments, RestartInEverySequence) {
  const Cut c = cut({0, 0, 2, 2, 2, 0, 0, 0, 3, 4}, 5, 6);
  EXPECT_EQ(c.left, 0);
  EXPECT_THAT(c.lengths, ElementsAre(2, 3, 3, 1, 1, 0));
  EXPECT_THAT(c.of_tokens, ElementsAre(0, 2, 5, 8, 9, 10, 10));
  EXPECT_THAT(c.of_q, ElementsAre(0, 20, 50, 80, 90, 100, 100));
}

TEST(CutDocuments, ManyTokensOfFewDocuments) {
  std::vector<std::int32_t> first_key;
  for (const std::int32_t begin : {0, 1, 1500, 1501, 4000}) {
    first_key.resize(static_cast<std::size_t>(begin), first_key.empty() ? 0 : first_key.back());
    first_key.push_back(begin);
  }
  first_key.resize(4096, 4000);
  const Cut c = cut(first_key, 4096, 5);
  EXPECT_EQ(c.left, 0);
  EXPECT_THAT(c.lengths, ElementsAre(1, 1499, 1, 2499, 96));
  EXPECT_THAT(c.of_tokens, ElementsAre(0, 1, 1500, 1501, 4000, 4096));
}

TEST(CutDocuments, AreCutAtChunks) {
  const Cut c = cut({0, 0, 0, 3, 3, 3, 3, 3}, 8, 4, 4);
  EXPECT_EQ(c.left, 0);
  EXPECT_THAT(c.lengths, ElementsAre(3, 1, 4, 0));
}

// If there are more documents than the plan has room for, our own kernel computes the call.
TEST(CutDocuments, MoreThanTheCapacityAreLeft) {
  const Cut c = cut({0, 1, 2, 3}, 4, 3);
  EXPECT_EQ(c.left, 1);
  EXPECT_THAT(c.lengths, Each(0));
  EXPECT_THAT(c.of_q, Each(0));
}

// If first_key does not describe documents, our own kernel computes the call.
TEST(CutDocuments, OtherUsesOfFirstKeyAreNotCut) {
  // Here first_key describes a window of two positions instead of documents.
  const Cut c = cut({0, 0, 1, 2, 3, 4}, 6, 6);
  EXPECT_EQ(c.left, 1);
  EXPECT_THAT(c.lengths, Each(0));
}

}  // namespace
}  // namespace primus::turbo::emulated32
