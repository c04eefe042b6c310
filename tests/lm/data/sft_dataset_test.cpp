#include "lm/data/sft_dataset.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "data_test_util.h"
#include "lm/data/batch_loader.h"
#include "lm/tokenizer/simple.h"

namespace primus::data {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int32_t kPad = 256;

class SftData : public testing::Test {
 protected:
  Datasets open(SftOptions options) const {
    if (options.train_samples == 0) options.train_samples = 1;
    return open_sft_datasets(options, *bytes_);
  }
  // Makes three conversations: A has four tokens, of which the last two are learned, B has two and C three.
  SftOptions three(bool pack) const {
    return {.dataset = folder_.write("three.jsonl", R"({"input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1]}
{"input_ids": [5, 6], "loss_mask": [1, 1]}
{"input_ids": [7, 8, 9], "loss_mask": [0, 1, 1]}
)"),
            .pack = pack,
            .separate = pack,
            .shuffle = false,
            .seq_length = 5};
  }
  // Makes `count` conversations. Each has one learned token, which is the conversation's index.
  SftOptions numbered(int count) const {
    std::string lines;
    for (int i = 0; i < count; ++i)
      lines += "{\"input_ids\": [200, " + std::to_string(i) + "], \"loss_mask\": [0, 1]}\n";
    return {.dataset = folder_.write("numbered.jsonl", lines), .seq_length = 2};
  }
  std::vector<int32_t> tokens_of(const Dataset& data, int64_t draw) const {
    std::vector<int32_t> tokens(static_cast<size_t>(data.seq_length()) + 1);
    std::vector<float> mask(static_cast<size_t>(data.seq_length()));
    data.sample(draw, tokens, mask);
    return tokens;
  }
  std::vector<float> mask_of(const Dataset& data, int64_t draw) const {
    std::vector<int32_t> tokens(static_cast<size_t>(data.seq_length()) + 1);
    std::vector<float> mask(static_cast<size_t>(data.seq_length()));
    data.sample(draw, tokens, mask);
    return mask;
  }
  // Draws `count` samples from the data of numbered(). Returns the index of each sample's conversation.
  std::vector<int32_t> numbers(const Dataset& data, int64_t first, int64_t count) const {
    std::vector<int32_t> all;
    for (int64_t i = 0; i < count; ++i) all.push_back(tokens_of(data, first + i)[1]);
    return all;
  }

  std::unique_ptr<const Tokenizer> bytes_ = make_byte_tokenizer();
  TemporaryFolder folder_;
};

TEST_F(SftData, PaddedSamplesLearnByLabel) {
  const Datasets data = open(three(false));
  const Dataset& train = *data.train;
  EXPECT_FALSE(train.separates_documents());
  EXPECT_THAT(tokens_of(train, 0), ElementsAre(1, 2, 3, 4, kPad, kPad));
  // The input 2 has the label 3, the first learned token of the answer.
  EXPECT_THAT(mask_of(train, 0), ElementsAre(0, 1, 1, 0, 0));
  EXPECT_THAT(tokens_of(train, 1), ElementsAre(5, 6, kPad, kPad, kPad, kPad));
  EXPECT_THAT(mask_of(train, 1), ElementsAre(1, 0, 0, 0, 0));
  EXPECT_THAT(mask_of(train, 2), ElementsAre(1, 1, 0, 0, 0));
  EXPECT_EQ(train.learned_tokens(0), 2);
  EXPECT_EQ(train.learned_tokens(1), 1);
  EXPECT_THAT(tokens_of(train, 3), ElementsAre(1, 2, 3, 4, kPad, kPad)) << "the second pass";
  EXPECT_THAT(data.notes, IsEmpty());
  EXPECT_THAT(data.facts, ElementsAre(HasSubstr(
                              "3 conversations packed into 3 sequences, 60.0 % full; the loss is over 5 of 9 "
                              "tokens")));
}

TEST_F(SftData, PackedConversationsStaySeparate) {
  const Datasets data = open(three(true));
  const Dataset& train = *data.train;
  ASSERT_TRUE(train.separates_documents());
  EXPECT_THAT(tokens_of(train, 0), ElementsAre(1, 2, 3, 4, 5, 6));
  // The label 5 is never learned: it starts a conversation, and the input 4 belongs to another conversation.
  EXPECT_THAT(mask_of(train, 0), ElementsAre(0, 1, 1, 0, 1));
  std::vector<int32_t> starts;
  train.document_starts(0, starts);
  EXPECT_THAT(starts, ElementsAre(0, 4));
  EXPECT_THAT(tokens_of(train, 1), ElementsAre(7, 8, 9, kPad, kPad, kPad));
  EXPECT_THAT(mask_of(train, 1), ElementsAre(1, 1, 0, 0, 0));
  train.document_starts(1, starts);
  EXPECT_THAT(starts, ElementsAre(0, 3));

  const BatchLoaderOptions loader{.micro_batch_size = 2, .prefetch = 0, .samples_per_mean = 2};
  BatchLoader batches(train, loader);
  const Batch& batch = batches.next();
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 0, 1, 2, 0, 1));
  EXPECT_THAT(batch.document_starts, ElementsAre(0, 4, 5, 8, 10));
  EXPECT_EQ(batch.loss_divisor, 5) << "the microbatch has all five labels";

  SftOptions joined = three(true);
  joined.separate = false;
  const Datasets across = open(joined);
  EXPECT_FALSE(across.train->separates_documents());
  EXPECT_THAT(mask_of(*across.train, 0), ElementsAre(0, 1, 1, 0, 1));
  EXPECT_NE(across.train_fingerprint, data.train_fingerprint);
}

TEST_F(SftData, PacksAreFilledFirstFitLongestFirst) {
  SftOptions options{.dataset = folder_.write("a.jsonl", R"({"input_ids": [1, 2]}
{"input_ids": [3, 4, 5, 6, 7, 8]}
{"input_ids": [9, 10, 11]}
{"input_ids": [12, 13]}
)"),
                     .pack = true,
                     .seq_length = 6};
  // Samples have seven tokens. The conversation of 6 tokens fills most of the first sample; the conversations
  // of 3, 2 and 2 tokens share the second.
  const Datasets data = open(options);
  std::set<std::vector<int32_t>> samples = {tokens_of(*data.train, 0), tokens_of(*data.train, 1)};
  EXPECT_THAT(samples, ElementsAre(std::vector<int32_t>{3, 4, 5, 6, 7, 8, kPad},
                                   std::vector<int32_t>{9, 10, 11, 1, 2, 12, 13}));
  options.shuffle = false;  // in the order of the file
  const Datasets in_order = open(options);
  EXPECT_THAT(tokens_of(*in_order.train, 0), ElementsAre(1, 2, 9, 10, 11, 12, 13));
  EXPECT_THAT(tokens_of(*in_order.train, 1), ElementsAre(3, 4, 5, 6, 7, 8, kPad));
}

TEST_F(SftData, LongConversationsLoseTheirEnd) {
  SftOptions options{
      .dataset = folder_.write("a.jsonl", R"({"input_ids": [1, 2, 3, 4, 5], "loss_mask": [0, 1, 1, 1, 1]}
{"input_ids": [1, 2, 3, 4, 5], "loss_mask": [0, 0, 0, 0, 1]}
{"input_ids": [6, 7, 8, 9], "loss_mask": [0, 0, 0, 1]}
{"input_ids": [9], "loss_mask": [1]}
)"),
      .shuffle = false,
      .seq_length = 3};
  const Datasets data = open(options);
  EXPECT_THAT(tokens_of(*data.train, 0), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(mask_of(*data.train, 0), ElementsAre(1, 1, 1));
  EXPECT_THAT(tokens_of(*data.train, 1), ElementsAre(6, 7, 8, 9)) << "the last token is only a label";
  EXPECT_THAT(data.notes,
              ElementsAre(HasSubstr("truncated 1 of 4 conversations: longer than seq_length (3)"),
                          HasSubstr("skipped 1 of 4 conversations: no answer tokens within seq_length"),
                          HasSubstr("skipped 1 of 4 conversations: no answer")));
  options.inline_bos = true;
  options.seq_length = 4;  // five tokens fit: the last is only a label
  EXPECT_THAT(open(options).notes, ElementsAre(HasSubstr("skipped 1 of 4 conversations: no answer")));
  options.seq_length = 3;
  EXPECT_THAT(open(options).notes,
              Contains(HasSubstr("skipped 2 of 4 conversations: longer than seq_length (3)")));
  options.seq_length = 1;
  options.inline_bos = false;
  EXPECT_THAT(open(options).notes, Contains(HasSubstr("skipped 2 of 4 conversations: no answer tokens")));
  options.dataset = folder_.write("b.jsonl", R"({"prompt": "a", "response": ""})");
  EXPECT_THAT(error_of([&] { open(options); }),
              HasSubstr("none of 1 conversation can be learned: no answer"));
}

TEST_F(SftData, EachEpochHasItsOwnOrder) {
  SftOptions options = numbered(50);
  const Datasets data = open(options), again = open(options);
  const std::vector<int32_t> first = numbers(*data.train, 0, 50), second = numbers(*data.train, 50, 50);
  EXPECT_NE(first, second);
  EXPECT_FALSE(std::ranges::is_sorted(first));
  for (std::vector<int32_t> epoch : {first, second}) {
    std::ranges::sort(epoch);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(epoch[static_cast<size_t>(i)], i);
  }
  EXPECT_EQ(numbers(*again.train, 50, 50), second) << "draws do not depend on earlier draws";
  SftOptions none = options;
  none.shares = "0,100,0";
  EXPECT_THAT(error_of([&] { open(none); }), HasSubstr("this share of the data has no conversations"));
  EXPECT_EQ(numbers(*again.train, 0, 50), first);
  EXPECT_EQ(again.train_fingerprint, data.train_fingerprint);
  options.seed = 7;
  EXPECT_NE(numbers(*open(options).train, 0, 50), first);
  options.shuffle = false;
  EXPECT_TRUE(std::ranges::is_sorted(numbers(*open(options).train, 50, 50)));
}

// All ranks together draw the samples that one rank would draw.
TEST_F(SftData, RanksDivideTheSamplesOfOneRank) {
  const Datasets data = open(numbered(30));
  const auto drawn = [&](int ranks, int64_t micro_batch) {
    std::map<int64_t, std::multiset<int32_t>> steps;
    for (int rank = 0; rank < ranks; ++rank) {
      BatchLoader batches(
          *data.train,
          {.micro_batch_size = micro_batch, .dp_rank = rank, .dp_size = ranks, .samples_per_mean = 8});
      for (int64_t i = 0; i < 5 * 8 / (ranks * micro_batch); ++i) {
        const Batch& batch = batches.next();
        EXPECT_EQ(batch.loss_divisor, static_cast<double>(micro_batch));
        for (size_t t = 0; t < batch.labels.size(); t += 2)
          steps[i * ranks * micro_batch / 8].insert(batch.labels[t]);
      }
    }
    return steps;
  };
  const auto one = drawn(1, 1);
  EXPECT_EQ(drawn(2, 1), one);
  EXPECT_EQ(drawn(4, 2), one);
}

TEST_F(SftData, OneHundredthIsHeldOut) {
  SftOptions options = numbered(250);
  options.valid_samples = 4;
  const Datasets data = open(options);
  const std::vector<int32_t> held = numbers(*data.valid, 0, 3);
  EXPECT_TRUE(std::ranges::is_sorted(held));
  EXPECT_EQ(numbers(*data.valid, 3, 3), held) << "the validation data repeats";
  const std::vector<int32_t> trained = numbers(*data.train, 0, 247);
  for (const int32_t number : held) EXPECT_EQ(std::ranges::find(trained, number), trained.end());
  EXPECT_EQ(std::set(trained.begin(), trained.end()).size(), 247U);
  EXPECT_EQ(data.test, nullptr);
  EXPECT_THAT(data.facts, Contains(HasSubstr("3 sequences; each evaluation draws 4")));

  options.valid_samples = 0;  // without evaluation, everything is trained on
  EXPECT_THAT(open(options).facts, Contains(HasSubstr("250 conversations")));
  options.shares = "80,10,10";
  EXPECT_THAT(open(options).notes,
              ElementsAre(testing::AllOf(HasSubstr("split 80,10,10 holds out 50 conversations, but no"),
                                         HasSubstr("set eval_iters"), HasSubstr("split=100,0,0"))));
  options.valid_samples = options.test_samples = 1;
  const Datasets shared = open(options);
  EXPECT_THAT(shared.notes, testing::IsEmpty());
  EXPECT_THAT(shared.facts, ElementsAre(HasSubstr("200 conversations"), HasSubstr("25 conversations"),
                                        HasSubstr("25 conversations")));
  options.shares = "99.9,0.05,0.05";  // rounds to 250, 0 and 0
  EXPECT_THAT(open(options).facts, ElementsAre(HasSubstr("248 conversations"), HasSubstr("1 conversation "),
                                               HasSubstr("1 conversation ")));
  options.shares = "80,10,10";
  options.train_split = "tool";
  EXPECT_THAT(open(options).notes, ElementsAre(HasSubstr("all of it is read, not only 'tool'")));
  SftOptions few = numbered(9);
  few.valid_samples = 1;
  const Datasets small = open(few);
  EXPECT_EQ(small.valid, nullptr);
  EXPECT_THAT(small.notes, ElementsAre(HasSubstr("fewer than 10 conversations")));
}

// Only conversations with learned tokens are held out. Otherwise the evaluation would have no labels with
// some seeds.
TEST_F(SftData, ConversationsWithoutLossAreNotHeldOut) {
  std::string lines;
  for (int i = 0; i < 20; ++i) {
    lines += "{\"input_ids\": [200, " + std::to_string(i) + "], \"loss_mask\": [0, " +
             (i % 2 == 0 ? "1" : "0") + "]}\n";
  }
  SftOptions options{.dataset = folder_.write("half.jsonl", lines), .seq_length = 2};
  options.valid_samples = options.test_samples = 1;
  for (options.seed = 0; options.seed < 8; ++options.seed) {
    options.shares = "";
    EXPECT_THAT(open(options).facts, Contains(HasSubstr("(validation): 1 conversation "))) << options.seed;
    options.shares = "80,10,10";
    const Datasets data = open(options);
    EXPECT_THAT(data.facts, ElementsAre(HasSubstr("(train): 8 conversations"), HasSubstr("1 conversation "),
                                        HasSubstr("1 conversation ")))
        << options.seed;
    EXPECT_THAT(data.notes, ElementsAre(HasSubstr("skipped 10 of 18 conversations: no answer")));
  }
}

// A longer seq_length does not help records without an answer, so the error does not suggest a longer one.
TEST_F(SftData, RecordsWithoutAnAnswerAreNamed) {
  const std::string question = R"({"messages": [{"role": "user", "content": "a"}]})",
                    masked = R"({"input_ids": [1, 2, 3], "loss_mask": [0, 0, 0]})",
                    answered = R"({"prompt": "a", "response": "b"})";
  SftOptions options{.dataset = folder_.write("none.jsonl", question + "\n" + masked), .seq_length = 200};
  const std::string error = error_of([&] { open(options); });
  EXPECT_THAT(error, HasSubstr("none of 2 conversations can be learned: no answer"));
  EXPECT_THAT(error, Not(HasSubstr("within seq_length")));
  options.dataset = folder_.write("some.jsonl", question + "\n" + answered);
  EXPECT_THAT(open(options).notes, Contains(HasSubstr("skipped 1 of 2 conversations: no answer")));
}

TEST_F(SftData, FoldersContainSplits) {
  const std::string one = R"({"prompt": "a", "response": "b"})", two = R"({"prompt": "a", "response": "c"})";
  folder_.write("d/train.jsonl", one);
  folder_.write("d/validation.jsonl", two + "\n" + two);
  SftOptions options{.dataset = (folder_ / "d").string(),
                     .seq_length = 200,
                     .train_samples = 1,
                     .valid_samples = 2,
                     .test_samples = 1};
  const Datasets data = open(options);
  EXPECT_THAT(data.facts,
              ElementsAre(HasSubstr("(train): 1 conversation "), HasSubstr("(validation): 2 conversations")));
  EXPECT_EQ(data.test, nullptr);
  EXPECT_THAT(data.notes, IsEmpty());
  folder_.write("d/more.jsonl", one);
  EXPECT_THAT(open(options).notes, ElementsAre(HasSubstr("train, validation and test: more.jsonl (")));
  std::filesystem::remove(folder_ / "d/more.jsonl");
  SftOptions list = options;
  list.dataset = (folder_ / "d/train.jsonl").string() + " " + (folder_ / "d/validation.jsonl").string();
  EXPECT_THAT(error_of([&] { open(list); }), HasSubstr("put them into one folder as train-1.jsonl"));
  options.shares = "50,50,0";
  EXPECT_THAT(open(options).notes, ElementsAre(HasSubstr("split (50,50,0) has no effect")));
  EXPECT_EQ(open(options).train_fingerprint, data.train_fingerprint);
  options.shares = "";
  // The fingerprint depends on the format, the sequence length and the data.
  std::set<uint64_t> fingerprints = {data.train_fingerprint};
  options.format = "squad";
  fingerprints.insert(open(options).train_fingerprint);
  options.seq_length = 100;
  fingerprints.insert(open(options).train_fingerprint);
  folder_.write("d/train.jsonl", two);
  fingerprints.insert(open(options).train_fingerprint);
  EXPECT_EQ(fingerprints.size(), 4U);
  options.format = "vicuna";
  EXPECT_THAT(error_of([&] { open(options); }),
              HasSubstr("choose one of auto, alpaca, squad, chatml, llama3"));
}

TEST_F(SftData, LinesThatAreListsAreRefusedWithAnExample) {
  const std::string line = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  SftOptions options{.dataset = folder_.write("lists.jsonl", line + "\n" + line + "\n"), .seq_length = 2};
  EXPECT_THAT(error_of([&] { open(options); }),
              testing::AllOf(HasSubstr("lists.jsonl:1: error: the line is a list, not an object"),
                             HasSubstr("jq -c '{messages: .}'")));
}

// If a folder has only train.jsonl, a hundredth of it is held out, as for a file.
TEST_F(SftData, AFolderWithoutValidationHasAHundredthHeldOut) {
  SftOptions options = numbered(50);
  std::filesystem::rename(options.dataset, folder_.write("only/train.jsonl", ""));
  options.dataset = (folder_ / "only").string();
  options.valid_samples = 1;
  EXPECT_THAT(open(options).facts, ElementsAre(HasSubstr("(train): 49 conversations"),
                                               HasSubstr("(validation): 1 conversation ")));
}

TEST_F(SftData, EpochsAreCountedInSamples) {
  EXPECT_EQ(sft_samples_of_epochs(numbered(50), *bytes_, 3).samples, 150);
  EXPECT_EQ(sft_samples_of_epochs(numbered(50), *bytes_, 0.01).samples, 1);
  EXPECT_EQ(sft_samples_of_epochs(three(true), *bytes_, 1).samples, 2);
}

TEST_F(SftData, CountedFilesAreNotReadAgain) {
  SftOptions options = numbered(50);
  const Datasets read = open(options);
  options.units = sft_samples_of_epochs(options, *bytes_, 1).units;
  folder_.write("numbered.jsonl", "no JSON");
  EXPECT_EQ(open(options).train_fingerprint, read.train_fingerprint);
}

}  // namespace
}  // namespace primus::data
