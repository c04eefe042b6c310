#include "lm/data/indexed_dataset.h"

#include <gmock/gmock.h>

#include <cstring>
#include <tuple>

#include "base/error.h"
#include "data_test_util.h"

namespace primus::data {
namespace {

using testing::HasSubstr;

const std::string kGolden = PRIMUS_SOURCE_DIR "/tests/golden/megatron/";

std::vector<int32_t> sequence(const IndexedDataset& data, int64_t i) {
  std::vector<int32_t> tokens(static_cast<size_t>(data.length(i)));
  data.read(i, 0, tokens);
  return tokens;
}

TEST(IndexedDataset, ReadsAndRewritesMegatronsFilesByteForByte) {
  const TemporaryFolder folder;
  for (const std::string name : {"a_text_document", "b_text_document"}) {
    const auto golden = IndexedDataset::open(kGolden + name);
    IndexedDatasetWriter writer(folder / name, golden->token_type());
    writer.append(*golden, 0, golden->documents());
    writer.finish();
    for (const char* extension : {".bin", ".idx"}) {
      EXPECT_EQ(read_all(folder / (name + extension)), read_all(kGolden + name + extension))
          << name << extension;
    }
  }
}

TEST(IndexedDataset, KeepsEveryTokenType) {
  const TemporaryFolder folder;
  const std::vector<std::tuple<TokenType, int, std::vector<int32_t>>> cases = {
      {TokenType::kU8, 1, {0, 255}},
      {TokenType::kI8, 1, {-128, 127}},
      {TokenType::kI16, 2, {-32768, 32767}},
      {TokenType::kU16, 2, {0, 65535}},
      {TokenType::kI32, 4, {INT32_MIN, INT32_MAX}},
      {TokenType::kI64, 8, {INT32_MIN, 7}}};
  for (const auto& [type, width, tokens] : cases) {
    IndexedDatasetWriter writer(folder / "x", type);
    writer.end_document();  // an empty document
    writer.add_sequence(tokens);
    writer.add_sequence({});
    writer.end_document();
    writer.finish();
    const auto data = IndexedDataset::open(folder / "x");
    EXPECT_EQ(data->token_type(), type);
    EXPECT_EQ(data->documents(), 2);
    EXPECT_EQ(data->document_start(1), 0);
    EXPECT_EQ(data->sequences(), 2);
    EXPECT_EQ(data->tokens(), 2);
    EXPECT_EQ(sequence(*data, 0), tokens);
    EXPECT_EQ(sequence(*data, 1), std::vector<int32_t>());
    // Little-endian two's complement, as numpy writes it.
    std::string expected;
    for (const int32_t token : tokens) {
      const auto bits = static_cast<uint64_t>(static_cast<int64_t>(token));
      for (int byte = 0; byte < width; ++byte) expected += static_cast<char>(bits >> (8 * byte));
    }
    EXPECT_EQ(read_all(folder / "x.bin"), expected) << token_name(type);
  }
}

// For more than 256 MiB, the fingerprint covers pieces of 16 KiB: the first, the last, and others at equal
// distances.
TEST(IndexedDataset, TheFingerprintOfLargeDataCoversSpreadPieces) {
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "x", TokenType::kI32);
  writer.add_sequence(std::vector<int32_t>{0});
  writer.end_document();
  writer.finish();
  constexpr int32_t kTokens = (260 << 20) / 4;
  constexpr int64_t kBytes = int64_t{4} * kTokens, kStep = (kBytes - (16 << 10)) / 4095;
  const auto put = [&](const char* name, int64_t at, int32_t value) {
    std::fstream file(folder / name, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(at).write(reinterpret_cast<const char*>(&value), sizeof value);
    ASSERT_TRUE(file);
  };
  put("x.idx", 34, kTokens);  // the length of the sequence
  std::filesystem::resize_file(folder / "x.bin", static_cast<uint64_t>(kBytes));  // a sparse file
  const auto fingerprint = [&] { return IndexedDataset::open(folder / "x")->fingerprint(); };
  const uint64_t zeros = fingerprint();
  EXPECT_EQ(fingerprint(), zeros);
  for (const int64_t at : {int64_t{0}, kStep + 4, 2047 * kStep + (16 << 10) - 4, kBytes - 4}) {
    put("x.bin", at, 1);
    EXPECT_NE(fingerprint(), zeros) << at;
    put("x.bin", at, 0);
  }
  EXPECT_EQ(fingerprint(), zeros);
}

TEST(IndexedDataset, AFolderOfFilesIsRefusedWithThePrefixOfAPair) {
  const TemporaryFolder folder;
  IndexedDataset::refuse_folder(folder.path());
  {
    IndexedDatasetWriter writer(folder / "books", TokenType::kU16);
    writer.add_sequence(std::vector<std::int32_t>{1, 2});
    writer.finish();
  }
  EXPECT_THAT(
      error_of([&] { IndexedDataset::refuse_folder(folder.path()); }),
      testing::HasSubstr("holds tokenized data\n  hint: set the data path to the common prefix of a .bin "
                         "and an .idx file: " +
                         (folder / "books").string()));
  IndexedDataset::refuse_folder(folder / "books");
}

TEST(IndexedDataset, WriterRefusesTokensThatDoNotFit) {
  const TemporaryFolder folder;
  {
    IndexedDatasetWriter writer(folder / "x", TokenType::kU16);
    const std::vector<int32_t> tokens = {65536};
    EXPECT_THAT(error_of([&] { writer.add_sequence(tokens); }), HasSubstr("token 65536 does not fit uint16"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "a destroyed writer leaves no files";
}

TEST(IndexedDataset, TokenTypeFollowsTheVocabulary) {
  EXPECT_EQ(token_type_for(65499), TokenType::kU16);
  EXPECT_EQ(token_type_for(65500), TokenType::kI32);
}

class BrokenIndex : public testing::Test {
 protected:
  void SetUp() override {
    index_ = read_all(kGolden + "a_text_document.idx");
    data_ = read_all(kGolden + "a_text_document.bin");
  }
  std::string error() {
    folder_.write("x.idx", index_);
    folder_.write("x.bin", data_);
    return error_of([&] { IndexedDataset::open(folder_ / "x"); });
  }
  template <class T>
  void put(size_t at, T value) {
    std::memcpy(index_.data() + at, &value, sizeof value);
  }
  // Byte offsets in the index of 61 sequences of 2-byte tokens.
  static constexpr size_t kLengths = 34, kPointers = kLengths + 4 * 61, kDocuments = kPointers + 8 * 61;

  TemporaryFolder folder_;
  std::string index_, data_;
};

TEST_F(BrokenIndex, Missing) {
  EXPECT_THAT(error_of([&] { IndexedDataset::open(folder_ / "none"); }), HasSubstr("data file '"));
}

TEST_F(BrokenIndex, ATextFileGetsAHintAboutTokenize) {
  folder_.write("corpus.txt", "words");
  EXPECT_THAT(error_of([&] { IndexedDataset::open(folder_ / "corpus.txt"); }),
              AllOf(HasSubstr("is a file, not the prefix"), HasSubstr("primus data tokenize --input")));
}

TEST_F(BrokenIndex, AnyTruncationIsAnError) {
  const std::string whole = index_;
  for (size_t size = 0; size < whole.size(); size += size < 40 ? 1 : 61) {
    index_ = whole.substr(0, size);
    EXPECT_THAT(error(), HasSubstr("x.idx")) << size;
  }
}

// An index that names one large sequence many times is refused: merging or splitting would need terabytes.
TEST_F(BrokenIndex, OverlappingSequences) {
  const auto all = static_cast<int32_t>(data_.size() / 2);
  for (size_t i = 0; i < 61; ++i) {
    put<int32_t>(kLengths + 4 * i, all);
    put<int64_t>(kPointers + 8 * i, 0);
  }
  EXPECT_THAT(error(), HasSubstr("they lie over each other"));
  // Sequences in another order and with a gap are accepted.
  for (size_t i = 0; i < 61; ++i) {
    put<int32_t>(kLengths + 4 * i, 1);
    put<int64_t>(kPointers + 8 * i, static_cast<int64_t>(4 * (60 - i)));
  }
  folder_.write("x.idx", index_);
  EXPECT_EQ(IndexedDataset::open(folder_ / "x")->tokens(), 61);
}

TEST_F(BrokenIndex, Magic) {
  index_[0] = 'X';
  EXPECT_THAT(error(), HasSubstr("does not begin with MMIDIDX"));
}

TEST_F(BrokenIndex, Version) {
  put<uint64_t>(9, 2);
  EXPECT_THAT(error(), HasSubstr("format version 2"));
}

TEST_F(BrokenIndex, FloatTokens) {
  index_[17] = 7;
  EXPECT_THAT(error(), HasSubstr("data type 7"));
}

TEST_F(BrokenIndex, HugeCounts) {
  put<uint64_t>(18, UINT64_MAX / 2);
  EXPECT_THAT(error(), HasSubstr("out of range"));
}

TEST_F(BrokenIndex, ShortData) {
  data_.resize(data_.size() - 1);
  EXPECT_THAT(error(), HasSubstr("but '"));
}

TEST_F(BrokenIndex, NegativeLength) {
  put<int32_t>(kLengths + 4, -5);
  EXPECT_THAT(error(), HasSubstr("sequence 1 has the length -5"));
}

TEST_F(BrokenIndex, PointerOutside) {
  put<int64_t>(kPointers + 8, INT64_MAX);
  EXPECT_THAT(error(), HasSubstr("sequence 1 lies at bytes"));
}

TEST_F(BrokenIndex, DocumentsOutOfOrder) {
  put<int64_t>(kDocuments + 8, 40);
  EXPECT_THAT(error(), HasSubstr("document 2 begins at sequence"));
}

TEST_F(BrokenIndex, DocumentsThatEndEarly) {
  put<int64_t>(kDocuments + 8 * 61, 60);
  EXPECT_THAT(error(), HasSubstr("the documents end at sequence 60 of 61"));
}

TEST_F(BrokenIndex, Multimodal) {
  index_.append(61, '\0');
  EXPECT_THAT(error(), HasSubstr("multimodal"));
}

}  // namespace
}  // namespace primus::data
