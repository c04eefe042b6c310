#include "lm/data/dataset.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "data_test_util.h"
#include "lm/data/batch_loader.h"
#include "lm/data/cyclic_dataset.h"
#include "lm/data/gpt_dataset.h"
#include "lm/data/tokenize.h"
#include "lm/data/train_tokenizer.h"
#include "lm/tokenizer/simple.h"

namespace primus::data {
namespace {

using testing::HasSubstr;
using Tokens = std::vector<int32_t>;

struct Sample {
  Tokens tokens;
  std::vector<float> mask;
};

Sample sample_of(const Dataset& data, int64_t index) {
  Sample sample{Tokens(static_cast<size_t>(data.seq_length()) + 1),
                std::vector<float>(static_cast<size_t>(data.seq_length()))};
  data.sample(index, sample.tokens, sample.mask);
  return sample;
}

std::string some_text(int paragraphs) {
  std::string text;
  for (int i = 0; i < paragraphs; ++i) text += "Paragraph " + std::to_string(i) + " says what it says.\n\n";
  return text;
}

// A source of the sequences 1 2 3 9 | 1 2 3 9 ..., in which 9 is a pad token.
class PaddedSource final : public TokenSource {
 public:
  int64_t sequences() const override { return 50; }
  int32_t length(int64_t) const override { return 4; }
  void read(int64_t, int64_t offset, std::span<int32_t> out) const override {
    constexpr int32_t kTokens[] = {1, 2, 3, 9};
    std::copy_n(kTokens + offset, out.size(), out.begin());
  }
  std::string name() const override { return "padded"; }
  uint64_t fingerprint() const override { return 0; }
};

// Positions whose label is a pad token have no loss. All other positions have one.
TEST(GptDataset, PadTokensHaveNoLoss) {
  const GptDataset dataset(std::make_shared<PaddedSource>(), {0, 50, 6, 30, 1234}, {.pad = 9}, "train");
  std::vector<int32_t> tokens(7);
  std::vector<float> mask(6);
  for (int64_t i = 0; i < dataset.size(); ++i) {
    dataset.sample(i, tokens, mask);
    for (size_t at = 0; at < mask.size(); ++at) {
      EXPECT_EQ(mask[at], tokens[at + 1] == 0 ? 0.0F : 1.0F)
          << i << " " << at;  // pad tokens are read as id 0
      EXPECT_NE(tokens[at], 9);
    }
  }
}

// Counts the labels that a step divides its loss by. Data without a mask need not be read.
TEST(GptDataset, CountsTrainedLabels) {
  const auto source = std::make_shared<PaddedSource>();
  const GptDataset plain(source, {0, 50, 6, 30, 1234}, {}, "train");
  EXPECT_EQ(plain.learned_tokens(3), 6);
  const auto masked = [&] {
    return std::make_unique<GptDataset>(source, OrderOptions{0, 50, 6, 30, 1234}, TokenRules{.pad = 9},
                                        "train");
  };
  const auto padded = masked();
  for (int64_t i = 0; i < 8; ++i) {
    const Sample sample = sample_of(*padded, i);
    EXPECT_EQ(padded->learned_tokens(i), std::accumulate(sample.mask.begin(), sample.mask.end(), 0.0));
  }
  const auto cyclic = make_cyclic(masked(), {.micro_batch_size = 2});
  BatchLoader means(*cyclic, {.micro_batch_size = 2, .prefetch = 0, .samples_per_mean = 4});
  BatchLoader again(*cyclic, {.micro_batch_size = 2, .prefetch = 0});
  for (int step = 0; step < 3; ++step) {
    double learned = 0, divisors = 0;
    for (int i = 0; i < 2; ++i) {
      divisors += means.next().loss_divisor;
      const Batch& batch = again.next();
      EXPECT_EQ(batch.loss_divisor, 0);
      learned += std::accumulate(batch.loss_mask.begin(), batch.loss_mask.end(), 0.0);
    }
    EXPECT_EQ(divisors, learned);
  }
}

std::vector<Path> orders_in(const Path& cache) {
  std::vector<Path> orders;
  for (const std::string& name : Env::posix().list(cache)) {
    if (name.starts_with("sample-order-") && !name.ends_with(".lock")) orders.push_back(cache / name);
  }
  return orders;
}

class OpenDatasets : public testing::Test {
 protected:
  OpenDatasets() {
    options_.seq_length = 16;
    options_.train_samples = 4;
    options_.split = "969,30,1";
    options_.cache_dir = folder_ / "cache";
  }
  Datasets open() { return open_datasets(options_, *tokenizer_); }
  std::string error() {
    return error_of([this] { open(); });
  }
  // Writes a data set of the given sequences and makes it the data path.
  void use(const std::vector<Tokens>& sequences) {
    IndexedDatasetWriter writer(folder_ / "d", TokenType::kI32);
    for (const Tokens& tokens : sequences) {
      writer.add_sequence(tokens);
      writer.end_document();
    }
    writer.finish();
    options_.data_path = {(folder_ / "d").string()};
  }

  TemporaryFolder folder_;
  DataOptions options_;
  std::unique_ptr<const Tokenizer> tokenizer_ = make_byte_tokenizer();
};

// The number of ids does not identify a tokenizer: two tokenizers may have equally many ids with different
// meanings.
TEST_F(OpenDatasets, IdsOfAnotherTokenizerAreRefused) {
  TokenizeOptions tokenize;
  tokenize.inputs = {folder_.write("book.txt", some_text(200))};
  tokenize.output_prefix = folder_ / "d";
  tokenize_corpus(tokenize, *make_byte_tokenizer());
  options_.data_path = {tokenized_prefix(folder_ / "d", "text").string()};
  EXPECT_NO_THROW(open());
  // A checkpoint has the files of a tokenizer, but not its kind. Such a tokenizer has another fingerprint,
  // and is accepted.
  tokenizer_->save(folder_ / "saved");
  tokenizer_ = load_tokenizer("", (folder_ / "saved").string());
  EXPECT_NE(tokenizer_->fingerprint(), make_byte_tokenizer()->fingerprint());
  EXPECT_NO_THROW(open());

  TrainTokenizerOptions train;
  train.inputs = tokenize.inputs;
  train.bpe.vocab_size = 300;
  tokenizer_ =
      load_tokenizer("HuggingFaceTokenizer", folder_.write("tokenizer.json", train_tokenizer(train)));
  EXPECT_THAT(error(), HasSubstr("was tokenized with another tokenizer (ByteTokenizer "));
  options_.allow_other_tokenizer = true;
  EXPECT_NO_THROW(open());
  options_.allow_other_tokenizer = false;
  // A null tokenizer is accepted: the data may come from other software, and the ids from any tokenizer.
  tokenizer_ = make_null_tokenizer(1000);
  EXPECT_NO_THROW(open());

  // The tokenizer's record does not apply to data that later replaced the original.
  tokenizer_ = load_tokenizer("HuggingFaceTokenizer", (folder_ / "tokenizer.json").string());
  IndexedDatasetWriter writer(options_.data_path.front(), TokenType::kU16);
  writer.add_sequence(Tokens(200, 7));
  writer.end_document();
  writer.finish();
  EXPECT_NO_THROW(open());
}

TEST_F(OpenDatasets, PlainTextIsTokenizedOnceAndReused) {
  options_.data_path = {folder_.write("book.txt", some_text(2000))};
  options_.valid_samples = 2;
  int calls = 0;
  options_.text.progress = [&calls](const TokenizeProgress&) { ++calls; };
  const Datasets first = open();
  EXPECT_GT(calls, 0);
  ASSERT_NE(first.train, nullptr);
  ASSERT_NE(first.valid, nullptr);
  EXPECT_EQ(first.test, nullptr);
  const Sample sample = sample_of(*first.train, 0);
  EXPECT_THAT(some_text(2000), HasSubstr(tokenizer_->decode(sample.tokens)));

  calls = 0;
  const Datasets second = open();
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(sample_of(*second.train, 3).tokens, sample_of(*first.train, 3).tokens);

  folder_.write("book.txt", some_text(2001));
  open();
  EXPECT_GT(calls, 0) << "changed contents need a new cache";
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "cache")) {
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos);
  }
}

// Without an explicit split, some text is held out. The held-out text is not trained on.
TEST_F(OpenDatasets, APartOfTextIsHeldOut) {
  options_.split.reset();
  options_.valid_samples = options_.test_samples = 2;
  options_.data_path = {folder_.write("book.txt", some_text(2000))};
  const Datasets data = open();
  ASSERT_NE(data.train, nullptr);
  ASSERT_NE(data.valid, nullptr);
  EXPECT_EQ(data.test, nullptr);
  EXPECT_THAT(data.notes, testing::IsEmpty());
  const std::string last = "Paragraph 1999 says";
  const auto text_of = [&](const Dataset& set, int64_t samples) {
    std::string text;
    for (int64_t i = 0; i < samples; ++i) text += tokenizer_->decode(sample_of(set, i).tokens) + "|";
    return text;
  };
  // In one pass over all training data, no sample contains the end of the book, which is validation data.
  options_.valid_samples = options_.test_samples = 0;
  options_.train_samples = samples_of_epochs(options_, *tokenizer_, 1);
  const Datasets whole = open();
  EXPECT_EQ(whole.train->size(), options_.train_samples) << "exactly one pass";
  EXPECT_THAT(text_of(*whole.train, whole.train->size()), testing::Not(HasSubstr("aph 1999 say")));
  const auto words = static_cast<double>(some_text(2000).size());
  EXPECT_GT(static_cast<double>(options_.train_samples), 0.9 * words / 16);
  EXPECT_LT(static_cast<double>(options_.train_samples), 0.995 * words / 16);
  EXPECT_NEAR(static_cast<double>(samples_of_epochs(options_, *tokenizer_, 2.5)),
              2.5 * static_cast<double>(options_.train_samples), 4);
}

TEST_F(OpenDatasets, ShortTextIsUsedOnlyForTraining) {
  options_.split.reset();
  options_.valid_samples = 1;
  options_.data_path = {folder_.write("note.txt", "one short paragraph, and that is it")};
  const Datasets data = open();
  EXPECT_NE(data.train, nullptr);
  EXPECT_EQ(data.valid, nullptr);
  EXPECT_FALSE(data.held_out);
  EXPECT_THAT(data.notes, testing::ElementsAre(HasSubstr("because its text is one piece")));
  options_.data_path = {folder_.write("short.txt", "one short paragraph")};
  EXPECT_THAT(open().notes,
              testing::ElementsAre(HasSubstr("too little text to hold some out for validation: it "
                                             "has 20 tokens, and training and validation need 34")));
}

// Documents are not divided, however long they are. The note gives this reason.
TEST_F(OpenDatasets, OneLongDocumentIsUsedOnlyForTraining) {
  options_.split.reset();
  options_.valid_samples = 1;
  const std::string line = "{\"text\": \"" + std::string(2000, 'x') + "\"}\n";
  options_.data_path = {folder_.write("long.jsonl", line)};
  EXPECT_THAT(open().notes,
              testing::ElementsAre(testing::AllOf(
                  HasSubstr("nothing is held out for validation, because its text is one piece"),
                  HasSubstr("write it as plain text, or"))));
  options_.data_path = {folder_.write("short.jsonl", line + "{\"text\": \"ab\"}\n")};
  EXPECT_THAT(open().notes, testing::ElementsAre(HasSubstr("no division of its 2 pieces leaves")));
}

// A long last document makes the validation share large, and a warning reports this.
TEST_F(OpenDatasets, ALargeValidationShareIsAWarning) {
  options_.split.reset();
  options_.valid_samples = 1;
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += "{\"text\": \"" + std::string(50, 'x') + "\"}\n";
  const std::string last = "{\"text\": \"" + std::string(9000, 'y') + "\"}\n";
  options_.data_path = {folder_.write("uneven.jsonl", lines + last)};
  const Datasets text = open();
  ASSERT_TRUE(text.valid && text.held_out);
  EXPECT_THAT(text.facts, testing::IsEmpty());
  EXPECT_THAT(text.notes,
              testing::ElementsAre(AllOf(HasSubstr(" %) are held out for validation, because"),
                                         HasSubstr("uneven.jsonl: 9001 of 10021 tokens (89.8 %)"),
                                         HasSubstr("write the data as plain text"),
                                         HasSubstr("valid_data_path"), HasSubstr("split=100,0,0"))));
  // The long document is in the training share.
  options_.data_path = {folder_.write("first.jsonl", last + lines)};
  EXPECT_THAT(open().notes, testing::IsEmpty());
  // Documents in a .bin file give the same warning, with the usual shares and with a share that the user
  // chose.
  std::vector<Tokens> sequences(199, Tokens(20, 1));
  sequences.push_back(Tokens(4000, 2));
  use(sequences);
  const auto warned = testing::ElementsAre(AllOf(HasSubstr("(50.1 %) are held out for validation"),
                                                 HasSubstr("A sequence of the .bin file is a piece")));
  EXPECT_THAT(open().notes, testing::ElementsAre(HasSubstr("(50.4 %) are held out for validation")));
  options_.split = "99.5,0.5,0";
  EXPECT_THAT(open().notes, warned);
  // No warning appears if the user's own share is as large as the held-out part.
  use(std::vector<Tokens>(200, Tokens(20, 1)));
  options_.split = "70,30,0";
  EXPECT_THAT(open().notes, testing::IsEmpty());
  EXPECT_THAT(open().facts, testing::IsEmpty());
}

// A share is a number of pieces, and the last piece, which is held out, is short.
TEST_F(OpenDatasets, ASmallValidationShareIsAWarning) {
  options_.split.reset();
  options_.valid_samples = 1;
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += "{\"text\": \"" + std::string(2000, 'x') + "\"}\n";
  const std::string last = "{\"text\": \"" + std::string(50, 'y') + "\"}\n";
  options_.data_path = {folder_.write("uneven.jsonl", lines + last)};
  const Datasets data = open();
  ASSERT_TRUE(data.valid && data.held_out);
  EXPECT_THAT(data.facts, testing::IsEmpty());
  EXPECT_THAT(data.notes,
              testing::ElementsAre(AllOf(HasSubstr("51 of 40071 tokens (0.1 %) are held out for validation"),
                                         HasSubstr("far less than 1 %"), HasSubstr("split=90,10,0"))));
}

TEST_F(OpenDatasets, HoldingOutTextDoesNotAffectTokenFiles) {
  std::vector<Tokens> sequences(200, Tokens(30, 7));
  use(sequences);
  options_.split = "99,1,0";
  options_.valid_samples = 1;
  const Tokens before = sample_of(*open().train, 1).tokens;
  const int64_t samples = open().train->size();
  options_.split.reset();
  EXPECT_EQ(open().train->size(), samples);
  EXPECT_EQ(sample_of(*open().train, 1).tokens, before);
  // 198 sequences have 30 tokens each, and a sample has 16 tokens.
  EXPECT_EQ(samples_of_epochs(options_, *tokenizer_, 1), (198 * 30 - 1) / 16);
}

// The rounded share of few long sequences has no sequence, and the share of few short sequences fills no
// sample. Both shares are enlarged to one sample, as for text. An explicit split keeps Megatron-LM's
// rounding.
TEST_F(OpenDatasets, FewTokenizedSequencesHaveSomeHeldOut) {
  options_.valid_samples = 1;
  std::vector<Tokens> sequences;
  for (int i = 0; i < 29; ++i) sequences.push_back(Tokens(200, i + 1));
  use(sequences);
  options_.split.reset();
  const Datasets usual = open();
  ASSERT_TRUE(usual.valid && usual.held_out);
  EXPECT_THAT(usual.notes, testing::IsEmpty());
  EXPECT_THAT(usual.facts,
              testing::ElementsAre(HasSubstr("200 of 5800 tokens (3.4 %) are held out for validation")));
  EXPECT_EQ(sample_of(*usual.valid, 0).tokens, Tokens(17, 29));
  EXPECT_EQ(samples_of_epochs(options_, *tokenizer_, 1), (28 * 200 - 1) / 16);
  options_.split = "99,1,0";
  EXPECT_EQ(samples_of_epochs(options_, *tokenizer_, 1), (29 * 200 - 1) / 16);
  EXPECT_THAT(error(), HasSubstr("gives valid no sequence of"));

  use(std::vector<Tokens>(60, Tokens(10, 1)));
  options_.split.reset();
  EXPECT_EQ(samples_of_epochs(options_, *tokenizer_, 1), (58 * 10 - 1) / 16);
  use({Tokens(500, 1)});
  EXPECT_THAT(open().notes,
              testing::ElementsAre(testing::AllOf(HasSubstr("because it is one piece"),
                                                  HasSubstr("A sequence of the .bin file is a piece"))));
}

TEST_F(OpenDatasets, JsonLinesFolderAndGlob) {
  folder_.write("in/a.jsonl", "{\"text\": \"first document, long enough\"}\n{\"text\": \"second\"}\n");
  folder_.write("in/b.jsonl", "{\"text\": \"third document\"}");
  folder_.write("in/readme.dat", "not ours");
  options_.split = "1,0,0";
  options_.data_path = {(folder_ / "in").string()};
  const Tokens from_folder = sample_of(*open().train, 0).tokens;
  options_.data_path = {(folder_ / "in").string() + "/*.jsonl"};
  EXPECT_EQ(sample_of(*open().train, 0).tokens, from_folder);
}

TEST_F(OpenDatasets, SamplesShareOneTokenAndEndDocuments) {
  Tokens tokens(100);
  std::iota(tokens.begin(), tokens.end(), 1);
  use({tokens});
  options_.split = "1";
  const Datasets sets = open();
  EXPECT_EQ(sets.train->size(), 6);  // (100 - 1) / 16
  for (int64_t i = 0; i < sets.train->size(); ++i) {
    const Sample sample = sample_of(*sets.train, i);
    EXPECT_EQ((sample.tokens[0] - 1) % 16, 0);
    EXPECT_EQ(sample.tokens[16], sample.tokens[0] + 16);
    EXPECT_EQ(sample.mask, std::vector<float>(16, 1.0f));
  }
}

TEST_F(OpenDatasets, EodMaskLoss) {
  Tokens tokens(33, 7);
  tokens[5] = 256;
  use({tokens});
  options_.split = "1";
  options_.seq_length = 32;
  options_.train_samples = 1;
  options_.eod_mask_loss = true;
  const Sample sample = sample_of(*open().train, 0);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(sample.mask[i], i == 5 ? 0.0f : 1.0f);
}

TEST_F(OpenDatasets, TenThousandEpochs) {
  use({Tokens(20, 1), Tokens(21, 2)});
  options_.split = "1";
  options_.train_samples = 10'000 * 41 / 16;
  const Datasets sets = open();
  EXPECT_GE(sets.train->size(), options_.train_samples);
  sample_of(*sets.train, sets.train->size() - 1);
}

TEST_F(OpenDatasets, BlendDrawsByWeight) {
  for (const char* name : {"one", "two"}) {
    IndexedDatasetWriter writer(folder_ / name, TokenType::kU16);
    writer.add_sequence(Tokens(500, name[0]));
    writer.end_document();
    writer.finish();
  }
  options_.data_path = {"3", (folder_ / "one").string(), "1", (folder_ / "two").string()};
  options_.split = "1";
  options_.train_samples = 40;
  const Datasets sets = open();
  EXPECT_EQ(sets.train->size(), 40);
  int ones = 0;
  for (int64_t i = 0; i < 40; ++i) ones += sample_of(*sets.train, i).tokens[0] == 'o';
  EXPECT_EQ(ones, 30);
  // A pass over each source is (500 - 1) / 16 samples.
  EXPECT_THAT(
      sets.facts,
      testing::ElementsAre((folder_ / "one").string() + " is read 0.968 times, because its weight is 0.75",
                           (folder_ / "two").string() + " is read 0.323 times, because its weight is 0.25"));

  options_.data_path = {(folder_ / "one").string(), (folder_ / "two").string()};
  options_.train_samples = 2 * (499 / 16);
  const Datasets plain = open();
  EXPECT_EQ(plain.train->size(), options_.train_samples) << "without weights, all samples are one epoch";
  const auto ones_of = [](const Dataset& data, int64_t begin, int64_t end) {
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) count += sample_of(data, i).tokens[0] == 'o';
    return count;
  };
  EXPECT_EQ(ones_of(*plain.train, 0, options_.train_samples), 499 / 16);
}

// A blend without weights repeats like a single data set, for training, validation and tests.
TEST_F(OpenDatasets, ABlendWithoutWeightsRepeats) {
  const std::map<char, int> lengths = {{'a', 600}, {'b', 200}};
  for (const auto& [name, length] : lengths) {
    IndexedDatasetWriter writer(folder_ / std::string(1, name), TokenType::kU16);
    for (int i = 0; i < 10; ++i) {
      writer.add_sequence(Tokens(static_cast<size_t>(length / 10), name));
      writer.end_document();
    }
    writer.finish();
  }
  options_.data_path = {(folder_ / "a").string(), (folder_ / "b").string()};
  options_.split = "50,50,0";
  const std::uint64_t once = open().train_fingerprint;
  options_.train_samples = options_.valid_samples = 400;
  const Datasets sets = open();
  EXPECT_EQ(sets.train_fingerprint, once);
  for (const Dataset* data : {sets.train.get(), sets.valid.get()}) {
    ASSERT_GE(data->size(), 400);
    int a = 0;
    for (int64_t i = 0; i < 400; ++i) a += sample_of(*data, i).tokens[0] == 'a';
    EXPECT_NEAR(a, 300, 3) << "by the size of the parts, in samples";
  }
}

TEST_F(OpenDatasets, OrdersAreStoredAndReused) {
  use({Tokens(70, 1), Tokens(40, 2), Tokens(90, 3)});
  const Tokens expected = [this] {
    DataOptions plain = options_;
    plain.cache_dir.clear();
    return sample_of(*open_datasets(plain, *tokenizer_).train, 3).tokens;
  }();
  EXPECT_EQ(sample_of(*open().train, 3).tokens, expected);
  const std::vector<Path> orders = orders_in(options_.cache_dir);
  ASSERT_EQ(orders.size(), 1u);
  const auto written = std::filesystem::last_write_time(orders[0]);
  EXPECT_EQ(sample_of(*open().train, 3).tokens, expected);
  EXPECT_EQ(std::filesystem::last_write_time(orders[0]), written);

  // A damaged file is built again.
  std::string damaged = read_all(orders[0]);
  damaged[damaged.size() - 3] ^= 1;
  folder_.write("cache/" + orders[0].filename().string(), damaged);
  EXPECT_EQ(sample_of(*open().train, 3).tokens, expected);
  EXPECT_NE(read_all(orders[0]), damaged);
  folder_.write("cache/" + orders[0].filename().string(), damaged.substr(0, 100));
  EXPECT_EQ(sample_of(*open().train, 3).tokens, expected);

  // Another seed, or other data under the old name, gives another order.
  options_.seed = 5;
  open();
  EXPECT_EQ(orders_in(options_.cache_dir).size(), 2u);
  use({Tokens(70, 1), Tokens(41, 2), Tokens(90, 3)});
  open();
  EXPECT_EQ(orders_in(options_.cache_dir).size(), 3u);
}

TEST_F(OpenDatasets, SeveralProcessesMayBuildOrdersAtOnce) {
  use({Tokens(7000, 1), Tokens(4000, 2), Tokens(9000, 3)});
  options_.train_samples = 20'000;
  const Datasets first = open();
  remove_tree(options_.cache_dir);
  std::vector<std::thread> threads;
  std::atomic<int> equal = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back(
        [&] { equal += sample_of(*open().train, 77).tokens == sample_of(*first.train, 77).tokens; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, 4);
  EXPECT_EQ(orders_in(options_.cache_dir).size(), 1u);
}

// Text documents end with the end-of-document token, unless append_eod is off.
TEST_F(OpenDatasets, DocumentsOfTextEndWithTheirToken) {
  std::string lines;
  for (int i = 0; i < 500; ++i) lines += "{\"text\": \"abc\"}\n";
  options_.data_path = {folder_.write("documents.jsonl", lines)};
  const auto eod = tokenizer_->special_ids().eod;
  ASSERT_TRUE(eod);
  const auto ends = [&] { return std::ranges::count(sample_of(*open().train, 0).tokens, *eod); };
  EXPECT_GT(ends(), 0);
  options_.text.append_eod = false;
  EXPECT_EQ(ends(), 0);
}

TEST_F(OpenDatasets, SeparatePathsForEachSplit) {
  options_.train_data_path = {folder_.write("t.txt", some_text(50))};
  options_.valid_data_path = {folder_.write("v.txt", std::string(500, 'v'))};
  options_.valid_samples = 2;
  EXPECT_EQ(sample_of(*open().valid, 1).tokens[3], 'v');
  // A missing test set is accepted.
  options_.test_samples = 1;
  EXPECT_EQ(open().test, nullptr);
  EXPECT_NE(open().valid, nullptr);
  options_.train_data_path.clear();
  EXPECT_THAT(error(), HasSubstr("validation or test data is given, but no training data"));
  std::swap(options_.valid_data_path, options_.test_data_path);
  EXPECT_THAT(error(), HasSubstr("validation or test data is given, but no training data"));
}

// The log states that an evaluation repeats sequences, as for fine-tuning.
TEST_F(OpenDatasets, RepeatedSequencesOfAnEvaluationAreStated) {
  use(std::vector<Tokens>(20, Tokens(17, 1)));
  options_.split = "80,10,10";  // two sequences of 17 tokens each: two samples of 16
  options_.valid_samples = 20;
  options_.test_samples = 2;
  EXPECT_THAT(open().facts, testing::IsEmpty());
  options_.test_samples = 5;
  EXPECT_THAT(
      open().facts,
      testing::ElementsAre("the validation set has 2 sequences; each evaluation draws 5, so sequences repeat",
                           "the test set has 2 sequences; each evaluation draws 5, so sequences repeat"));
  options_.split.reset();
  options_.data_path.clear();
  options_.train_data_path = {folder_.write("t.txt", some_text(50))};
  options_.valid_data_path = {folder_.write("v.txt", std::string(60, 'v'))};
  EXPECT_THAT(open().facts,
              testing::ElementsAre(
                  "the validation set has 3 sequences; each evaluation draws 5, so sequences repeat"));
}

// A share of 0 means that the set does not exist, as in Megatron-LM.
TEST_F(OpenDatasets, AShareOfZeroGivesNoDataSet) {
  use(std::vector<Tokens>(20, Tokens(100, 1)));
  options_.valid_samples = options_.test_samples = 2;
  for (const char* split : {"90,10,0", "90,10", "0.9,0.1,0.0"}) {
    options_.split = split;
    const Datasets sets = open();
    EXPECT_NE(sets.train, nullptr) << split;
    EXPECT_NE(sets.valid, nullptr) << split;
    EXPECT_EQ(sets.test, nullptr) << split;
  }
  options_.split = "100,0,0";
  EXPECT_EQ(open().valid, nullptr);
  options_.split = "0,1,0";
  EXPECT_THAT(error(), HasSubstr("leaves nothing to train on"));
}

TEST_F(OpenDatasets, TheFingerprintDependsOnlyOnContent) {
  use({Tokens(70, 1), Tokens(40, 2), Tokens(90, 3)});
  const uint64_t first = open().train_fingerprint;
  EXPECT_NE(first, 0u);
  std::filesystem::rename(folder_ / "d.bin", folder_ / "moved.bin");
  std::filesystem::rename(folder_ / "d.idx", folder_ / "moved.idx");
  options_.data_path = {(folder_ / "moved").string()};
  EXPECT_EQ(open().train_fingerprint, first);
  // Other tokens, other document boundaries, or more tokens change the fingerprint.
  for (const auto& other : {std::vector{Tokens(70, 1), Tokens(40, 2), Tokens(90, 4)},
                            {Tokens(71, 1), Tokens(39, 2), Tokens(90, 3)},
                            {Tokens(70, 1), Tokens(40, 2), Tokens(90, 3), Tokens(1, 3)}}) {
    use(other);
    EXPECT_NE(open().train_fingerprint, first);
  }
  // Changed text under an old name changes the fingerprint, too.
  options_.data_path = {folder_.write("t.txt", some_text(50))};
  const uint64_t text = open().train_fingerprint;
  EXPECT_EQ(open().train_fingerprint, text);
  folder_.write("t.txt", some_text(51));
  EXPECT_NE(open().train_fingerprint, text);
}

TEST_F(OpenDatasets, DamagedCachedTokensAreRebuilt) {
  options_.data_path = {folder_.write("t.txt", some_text(50))};
  const Tokens expected = sample_of(*open().train, 3).tokens;
  Path folder;
  for (const auto& entry : std::filesystem::directory_iterator(options_.cache_dir)) {
    if (entry.is_directory()) folder = entry.path();
  }
  const Path bin = folder / "tokens_text_document.bin", idx = folder / "tokens_text_document.idx";
  const std::string good = read_all(bin), index = read_all(idx);
  const auto write = [](const Path& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
  };
  const std::vector<std::function<void()>> damages = {
      [&] { write(bin, std::string(good.size(), '\1')); },  // wrong contents of equal size
      [&] { write(bin, good.substr(0, good.size() / 2)); },
      [&] { write(idx, index.substr(0, 40)); },
      [&] { std::filesystem::remove(idx); },
      [&] { std::filesystem::remove(bin); },
      [&] { std::filesystem::remove(folder / "checksums"); },
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    damages[i]();
    const Datasets sets = open();
    EXPECT_EQ(sample_of(*sets.train, 3).tokens, expected) << i;
    ASSERT_EQ(sets.notes.size(), 1u) << i;
    EXPECT_THAT(sets.notes[0], testing::AllOf(HasSubstr(folder.string()), HasSubstr("rebuilt")));
    EXPECT_EQ(read_all(bin), good) << i;
    EXPECT_TRUE(open().notes.empty()) << i;
  }
}

// Data truncated or overwritten during a run is reported. The process does not train on it, and does not
// crash.
TEST_F(OpenDatasets, DataThatChangesDuringTheRunIsDetected) {
  std::vector<Tokens> sequences(400, Tokens(100, 1));  // many pages
  for (const char* name : {"d.bin", "d.idx", "order"}) {
    use(sequences);
    remove_tree(options_.cache_dir);
    const Datasets sets = open();
    const Path file = std::string(name) == "order" ? orders_in(options_.cache_dir)[0] : folder_ / name;
    const auto size = std::filesystem::file_size(file);
    std::filesystem::resize_file(file, 5);
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_THAT(error_of([&] { sample_of(*sets.train, i); }),
                  testing::AllOf(HasSubstr(file.filename().string()), HasSubstr("while it was in use")));
    }
    // The index is overwritten by bytes of equal size that make all positions out of range.
    std::ofstream(file, std::ios::binary) << std::string(size, '\x7f');
    EXPECT_THAT(error_of([&] { sample_of(*sets.train, 0); }), HasSubstr("while it was in use"));
  }
}

TEST_F(OpenDatasets, MockData) {
  options_.mock_data = true;
  options_.valid_samples = options_.test_samples = 3;
  const Datasets sets = open();
  EXPECT_EQ(sample_of(*sets.test, 2).tokens.size(), 17u);
}

TEST_F(OpenDatasets, NoData) { EXPECT_THAT(error(), HasSubstr("no training data is given")); }

TEST_F(OpenDatasets, MissingFile) {
  options_.data_path = {(folder_ / "nowhere").string()};
  EXPECT_THAT(error(), HasSubstr("data '"));
  EXPECT_THAT(error(), ::testing::Not(HasSubstr("paths are relative")));
  options_.data_path = {"nosuch.txt"};
  EXPECT_THAT(error(), HasSubstr("paths are relative to '" + std::filesystem::current_path().string() + "'"));
}

TEST_F(OpenDatasets, ExtensionGiven) {
  use({Tokens(100, 1)});
  options_.data_path = {(folder_ / "d.idx").string()};
  EXPECT_THAT(error(), HasSubstr("leave out the extension"));
}

TEST_F(OpenDatasets, EmptyFile) {
  options_.data_path = {folder_.write("e.txt", "")};
  EXPECT_THAT(error(), HasSubstr("is empty"));
}

TEST_F(OpenDatasets, BlankFiles) {
  options_.data_path = {folder_.write("blank.txt", std::string(5000, '\n'))};
  EXPECT_THAT(error(), HasSubstr("only white space"));
  std::string records;
  for (int i = 0; i < 500; ++i) records += "{\"text\": \" \\n\\t \"}\n";
  options_.data_path = {folder_.write("blank.jsonl", records)};
  EXPECT_THAT(error(), HasSubstr("only white space"));
}

TEST_F(OpenDatasets, EmptyDataSet) {
  use({});
  EXPECT_THAT(error(), HasSubstr("is empty"));
}

TEST_F(OpenDatasets, EmptySplit) {
  use({Tokens(100, 1), Tokens(100, 2)});
  options_.split = "99,1,0";  // a split of two sequences
  options_.valid_samples = 1;
  EXPECT_THAT(error(), AllOf(HasSubstr("split '99,1,0' gives valid no sequence of "),
                             HasSubstr("which has 2 sequences"), HasSubstr("more data, or a share of 0")));
  use({Tokens(100, 1), Tokens(100, 2), Tokens(100, 3), Tokens(100, 4), Tokens(100, 5)});
  EXPECT_THAT(error(), HasSubstr("the smallest share is 20 of 100, one sequence (split: 80,20,0)"));
}

// If a share in `split` rounds to no sequence of a text, the share gets the sequences of one sample. Without
// `split`, the usual shares give the same result.
TEST_F(OpenDatasets, ASmallShareOfTextIsOneSample) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += fmt::format("{{\"text\": \"document {:02} of a few words\"}}\n", i);
  options_.data_path = {folder_.write("small.jsonl", text)};
  const auto tokens = [this](const std::unique_ptr<const Dataset>& data) {
    return sample_of(*data, 0).tokens;
  };
  options_.valid_samples = 1;
  options_.split = "99,1,0";
  const Datasets split = open();
  ASSERT_TRUE(split.valid && split.held_out);
  options_.split.reset();
  const Datasets usual = open();
  EXPECT_EQ(tokens(split.valid), tokens(usual.valid));
  EXPECT_THAT(split.facts,
              testing::ElementsAre(HasSubstr("27 of 1080 tokens (2.5 %) are held out for validation")));
  EXPECT_EQ(usual.facts, split.facts);
  options_.split = "98,1,1";
  options_.test_samples = 1;
  const Datasets three = open();
  ASSERT_TRUE(three.valid && three.test);
  EXPECT_EQ(tokens(three.test), tokens(usual.valid));
  EXPECT_NE(tokens(three.valid), tokens(three.test));
  EXPECT_NE(tokens(three.train), tokens(three.valid));
  // If no validation and test samples are drawn, nothing is held out.
  options_.valid_samples = options_.test_samples = 0;
  options_.split = "99,1,0";
  EXPECT_FALSE(open().held_out);
  // This text is too short to be divided.
  options_.data_path = {folder_.write("two.txt", "Some twenty letters here.")};
  options_.valid_samples = 1;
  options_.split = "99,1,0";
  EXPECT_THAT(error(), HasSubstr("gives valid no sequence of"));
}

TEST_F(OpenDatasets, SequenceLongerThanTheData) {
  use({Tokens(16, 1)});
  EXPECT_THAT(error(), HasSubstr("holds 16 tokens, fewer than the 17 of one sample"));
}

// The error has the user's file name, not that of the cached tokens.
TEST_F(OpenDatasets, TextThatIsTooShortIsNamed) {
  const std::string path = folder_.write("short.txt", "too short");
  options_.data_path = {path};
  EXPECT_THAT(error(), HasSubstr(path + " holds 10 tokens, fewer than the 17 of one sample"));
}

TEST_F(OpenDatasets, TokenBeyondTheVocabulary) {
  use({Tokens(100, 257)});
  options_.split = "1";
  EXPECT_THAT(error(),
              HasSubstr("document 0 has the token 257 at position 32, outside the vocabulary of 257"));
  // Opening the data reads only the first sample.
  Tokens one(400, 5);
  one[399] = 257;
  use({one});
  options_.train_samples = 400 / options_.seq_length;
  const Datasets sets = open();
  EXPECT_THAT(error_of([&] {
                for (int64_t i = 0; i < sets.train->size(); ++i) sample_of(*sets.train, i);
              }),
              HasSubstr("document 0 has the token 257 at position 399, outside the vocabulary of 257"));
}

TEST_F(OpenDatasets, BrokenJsonLine) {
  options_.data_path = {
      folder_.write("x.jsonl", "{\"text\": \"fine and long enough for it\"}\n{\"text\": oops}\n")};
  options_.split = "1";
  EXPECT_THAT(error(), HasSubstr("x.jsonl:2:10: error: broken JSON"));
  options_.text.skip_bad = true;
  const Datasets sets = open();
  ASSERT_EQ(sets.notes.size(), 1u);
  EXPECT_THAT(sets.notes[0], HasSubstr("skipped 1 broken lines"));
}

TEST_F(OpenDatasets, BadSplits) {
  use({Tokens(100, 1)});
  for (const char* split : {"none", "0,0,0", "1,2,3,4", "1,-1", "1.2.3"}) {
    options_.split = split;
    EXPECT_THAT(error(), HasSubstr("is not up to three numbers")) << split;
  }
}

TEST_F(OpenDatasets, BadBlends) {
  options_.data_path = {"1", "a", "b", "c"};
  EXPECT_THAT(error(), HasSubstr("in the data path '1 a b c', the weight of 'b' is missing"));
  options_.data_path = {"0", "a", "0", "b"};
  EXPECT_THAT(error(),
              testing::AllOf(HasSubstr("the blend weights 0, 0 add up to zero"), HasSubstr("hint: ")));
  options_.data_path = {"-1", "a"};
  EXPECT_THAT(error(),
              testing::AllOf(HasSubstr("'-1' is not a valid blend weight for 'a'"), HasSubstr("hint: ")));
}

// A data set whose sample i has the tokens 10 i, 10 i + 1 and so on.
class CountingDataset final : public Dataset {
 public:
  explicit CountingDataset(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  int64_t seq_length() const override { return 3; }
  void sample(int64_t index, std::span<int32_t> tokens, std::span<float> mask) const override {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>(index * 10) + static_cast<int32_t>(i);
    std::fill(mask.begin(), mask.end(), 0.5f);
  }
  std::string description() const override { return "counting"; }

 private:
  int64_t size_;
};

TEST(BatchLoader, EachRankGetsItsRowsInOrder) {
  const CountingDataset data(1000);
  for (const int prefetch : {0, 1, 5}) {
    for (const int threads : {1, 3}) {
      for (const int rank : {0, 1}) {
        BatchLoader loader(data, {.micro_batch_size = 2,
                                  .dp_rank = rank,
                                  .dp_size = 2,
                                  .consumed_samples = 8,
                                  .prefetch = prefetch,
                                  .threads = threads});
        EXPECT_EQ(loader.consumed_samples(), 8);
        for (int64_t micro = 0; micro < 50; ++micro) {
          const Batch& batch = loader.next();
          const auto first = static_cast<int32_t>(8 + micro * 4 + rank * 2);
          EXPECT_EQ(batch.tokens, (Tokens{first * 10, first * 10 + 1, first * 10 + 2, (first + 1) * 10,
                                          (first + 1) * 10 + 1, (first + 1) * 10 + 2}));
          EXPECT_EQ(batch.labels[0], first * 10 + 1);
          EXPECT_EQ(batch.labels[5], (first + 1) * 10 + 3);
          EXPECT_EQ(batch.loss_mask, std::vector<float>(6, 0.5f));
          EXPECT_EQ(loader.consumed_samples(), 8 + (micro + 1) * 4);
        }
        EXPECT_GE(loader.wait_seconds(), 0);
      }
    }
  }
}

TEST(BlendedDataset, ADescriptionNamesThreeAndCountsTheOthers) {
  const auto blend_of = [](size_t count) {
    std::vector<std::unique_ptr<const Dataset>> datasets;
    for (size_t d = 0; d < count; ++d) datasets.push_back(std::make_unique<CountingDataset>(4));
    return BlendedDataset(std::move(datasets), {.dataset = {0}, .sample = {0}}).description();
  };
  EXPECT_EQ(blend_of(1), "a blend of counting");
  EXPECT_EQ(blend_of(3), "a blend of counting, counting, counting");
  EXPECT_EQ(blend_of(5), "a blend of counting, counting, counting and 2 more");
}

// Two samples with the given tokens. Token 9 ends a document.
class Listed final : public Dataset {
 public:
  explicit Listed(Tokens tokens) : tokens_(std::move(tokens)) {}
  int64_t size() const override { return 2; }
  int64_t seq_length() const override { return static_cast<int64_t>(tokens_.size()) / 2; }
  void sample(int64_t index, std::span<int32_t> tokens, std::span<float> mask) const override {
    const auto length = static_cast<size_t>(seq_length());
    std::copy_n(tokens_.begin() + index * seq_length(), length, tokens.begin());
    tokens[length] = 0;
    std::fill(mask.begin(), mask.end(), 1.0f);
  }
  std::string description() const override { return "listed"; }

 private:
  Tokens tokens_;
};

TEST(BatchLoader, MarksDocuments) {
  const Listed data({1, 9, 2, 3, 9, 9, 4, 9, /* second row */ 5, 6, 7, 8, 9, 1, 2, 3});
  BatchLoaderOptions options{.micro_batch_size = 2, .prefetch = 0};
  {
    BatchLoader loader(data, options);
    EXPECT_TRUE(loader.next().positions.empty());
  }
  options.reset_position_ids = options.reset_attention_mask = true;
  EXPECT_THAT(error_of([&] { BatchLoader(data, options); }), HasSubstr("end-of-document"));
  options.eod = 9;
  BatchLoader loader(data, options);
  const Batch& batch = loader.next();
  EXPECT_EQ(batch.positions, (Tokens{0, 1, 0, 1, 2, 0, 0, 1, 0, 1, 2, 3, 4, 0, 1, 2}));
  EXPECT_EQ(batch.document_starts, (Tokens{0, 2, 5, 6, 8, 13, 16}));
}

TEST(BatchLoader, ReportsTheEndOfTheData) {
  const CountingDataset data(5);
  for (const int prefetch : {0, 3}) {
    BatchLoader loader(data, {.micro_batch_size = 2, .prefetch = prefetch});
    loader.next();
    loader.next();
    EXPECT_THAT(error_of([&] { loader.next(); }), HasSubstr("the data is used up"));
    EXPECT_THAT(error_of([&] { loader.next(); }), HasSubstr("the data is used up"));
  }
}

TEST(BatchLoader, RefusesConsumedSamplesBetweenMicrobatches) {
  const CountingDataset data(5);
  EXPECT_THAT(error_of([&] { BatchLoader(data, {.micro_batch_size = 2, .consumed_samples = 3}); }),
              HasSubstr("not a multiple"));
}

}  // namespace
}  // namespace primus::data
