// Tests merging, splitting and inspecting data sets.
#include "lm/data/rearrange.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "data_test_util.h"
#include "lm/data/inspect.h"
#include "lm/data/made_by.h"
#include "lm/data/train_tokenizer.h"
#include "lm/tokenizer/simple.h"

namespace primus::data {
namespace {

using testing::HasSubstr;
using Tokens = std::vector<int32_t>;

class Rearrange : public testing::Test {
 protected:
  // Writes documents of the given sequences.
  Path write(const std::string& name, const std::vector<std::vector<Tokens>>& documents,
             TokenType type = TokenType::kU16) const {
    IndexedDatasetWriter writer(folder_ / name, type);
    for (const auto& document : documents) {
      for (const Tokens& tokens : document) writer.add_sequence(tokens);
      writer.end_document();
    }
    writer.finish();
    return folder_ / name;
  }
  std::string bytes(const Path& prefix) const {
    return read_all(prefix.string() + ".bin") + read_all(prefix.string() + ".idx");
  }

  TemporaryFolder folder_;
  const std::vector<std::vector<Tokens>> a_ = {{{1, 2}, {3}}, {}, {{4, 5, 9}}};
  const std::vector<std::vector<Tokens>> b_ = {{{6, 9}}, {{7}}};
};

TEST_F(Rearrange, MergedDataEqualsDataWrittenAtOnce) {
  auto both = a_;
  both.insert(both.end(), b_.begin(), b_.end());
  const Path expected = write("expected", both);
  merge_datasets({write("parts/a", a_), write("parts/b", b_)}, folder_ / "merged");
  EXPECT_EQ(bytes(folder_ / "merged"), bytes(expected));
  EXPECT_EQ(find_datasets({(folder_ / "parts").string()}),
            (std::vector<Path>{folder_ / "parts/a", folder_ / "parts/b"}));
}

TEST_F(Rearrange, PartsTogetherEqualTheWhole) {
  const Path whole = write("whole", a_);
  split_dataset(whole, {{folder_ / "x", 0, 1}, {folder_ / "y", 1, 3}});
  EXPECT_EQ(bytes(folder_ / "x"), bytes(write("x2", {a_[0]})));
  merge_datasets({folder_ / "x", folder_ / "y"}, folder_ / "again");
  EXPECT_EQ(bytes(folder_ / "again"), bytes(whole));
}

// Writes the data set at `prefix` again, with a record of its tokenizer (made_by.h).
void note_made_by(const Path& prefix, const Tokenizer& tokenizer) {
  const auto before = IndexedDataset::open(prefix);
  IndexedDatasetWriter writer(prefix, before->token_type());
  writer.append(*before, 0, before->documents());
  writer.complete();
  attach_made_by(writer, tokenizer);
  writer.finish();
}

TEST_F(Rearrange, TheNameOfTheTokenizerIsCopied) {
  const auto bytes_of = make_byte_tokenizer();
  const auto is_refused = [&](const std::string& name, const Tokenizer& tokenizer) {
    const Path prefix = folder_ / name;
    try {
      check_made_by(prefix, *IndexedDataset::open(prefix), tokenizer);
    } catch (const Error&) {
      return true;
    }
    return false;
  };
  TrainTokenizerOptions train;
  train.inputs = {folder_.write("book.txt", "a text of a few words, and a text of a few more words")};
  train.bpe.vocab_size = 260;
  const auto other =
      load_tokenizer("HuggingFaceTokenizer", folder_.write("tokenizer.json", train_tokenizer(train)));
  const Path a = write("a", a_), b = write("b", b_), c = write("c", b_);
  note_made_by(a, *bytes_of);
  note_made_by(b, *bytes_of);
  merge_datasets({a, b}, folder_ / "same");
  EXPECT_FALSE(is_refused("same", *bytes_of));
  EXPECT_TRUE(is_refused("same", *other));
  split_dataset(folder_ / "same", {{folder_ / "x", 0, 2}, {folder_ / "y", 2, 5}});
  EXPECT_FALSE(is_refused("y", *bytes_of));
  EXPECT_TRUE(is_refused("y", *other));
  // If the tokenizer of one part is unknown, the tokenizer of the merged data is unknown, too.
  merge_datasets({a, c}, folder_ / "unknown");
  EXPECT_FALSE(is_refused("unknown", *other));
  note_made_by(c, *other);
  EXPECT_THAT(error_of([&] {
                merge_datasets({a, c}, folder_ / "mixed");
              }),
              HasSubstr("was tokenized with another tokenizer (HuggingFaceTokenizer "));
  EXPECT_FALSE(IndexedDataset::exists(folder_ / "mixed"));
}

TEST_F(Rearrange, Mistakes) {
  const Path a = write("a", a_), wide = write("wide", b_, TokenType::kI32);
  EXPECT_THAT(error_of([&] {
                merge_datasets({a, wide}, folder_ / "m");
              }),
              HasSubstr("holds int32 tokens, not uint16"));
  EXPECT_FALSE(IndexedDataset::exists(folder_ / "m"));
  EXPECT_THAT(error_of([&] { merge_datasets({a}, a); }), HasSubstr("is both an input and the output"));
  EXPECT_THAT(error_of([&] { split_dataset(a, {{folder_ / "x", 0, 4}}); }), HasSubstr("has 3 documents"));
  folder_.write("half/a.idx", "");
  EXPECT_THAT(error_of([&] { find_datasets({(folder_ / "half").string()}); }), HasSubstr("no matching .bin"));
}

TEST_F(Rearrange, ExistingFilesAreReplacedOnlyOnRequest) {
  const Path a = write("a", a_), b = write("b", b_), taken = write("taken", b_);
  const std::string before = read_all(taken.string() + ".bin");
  EXPECT_THAT(error_of([&] { merge_datasets({a, b}, taken); }), HasSubstr("taken.bin' already exists"));
  EXPECT_THAT(error_of([&] {
                split_dataset(a, {{folder_ / "x", 0, 1}, {taken, 1, 3}});
              }),
              HasSubstr("--overwrite"));
  EXPECT_EQ(read_all(taken.string() + ".bin"), before);
  EXPECT_FALSE(IndexedDataset::exists(folder_ / "x"));
  std::filesystem::remove(taken.string() + ".bin");  // a file of an incomplete data set must be kept as well
  EXPECT_THAT(error_of([&] { merge_datasets({a, b}, taken); }), HasSubstr("taken.idx' already exists"));
  merge_datasets({a}, taken, {}, Existing::kReplace);
  EXPECT_EQ(read_all(taken.string() + ".bin"), read_all(a.string() + ".bin"));
  split_dataset(a, {{taken, 0, 1}}, {}, Existing::kReplace);
  EXPECT_EQ(IndexedDataset::open(taken)->documents(), 1);
}

TEST_F(Rearrange, Inspects) {
  const auto dataset = IndexedDataset::open(write("a", a_));
  const Inspection found = inspect(*dataset, {.vocab_size = 9, .eod = 9});
  EXPECT_EQ(found.documents, 3);
  EXPECT_EQ(found.empty_documents, 1);
  EXPECT_EQ(found.sequences, 3);
  EXPECT_EQ(found.tokens, 6);
  EXPECT_EQ(found.shortest, 1);
  EXPECT_EQ(found.longest, 3);
  ASSERT_EQ(found.histogram.size(), 3u);
  EXPECT_EQ(found.histogram[1].sequences, 1);
  EXPECT_EQ(found.histogram[2].from, 2);
  EXPECT_EQ(found.histogram[2].to, 3);
  EXPECT_EQ(found.histogram[2].tokens, 5);
  EXPECT_EQ(found.smallest_id, 1);
  EXPECT_EQ(found.largest_id, 9);
  EXPECT_EQ(found.beyond_vocabulary, 1);
  EXPECT_EQ(found.ended_documents, 1);
  EXPECT_EQ(found.unused_bytes, 0);
  EXPECT_FALSE(inspect(*dataset, {.read_tokens = false}).largest_id);
}

}  // namespace
}  // namespace primus::data
