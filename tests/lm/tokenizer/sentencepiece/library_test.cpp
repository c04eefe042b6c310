// Ids equal those of the sentencepiece library on random texts, for trained models and for models whose
// scores tie. Debian's library, 0.1.97, breaks ties of unigram models in another way than 0.2.3 and Primus.
// For such a tie, the two segmentations must have equal sums of scores. compare_library.py compares every id
// with the latest library. PRIMUS_SENTENCEPIECE_TEXTS sets the number of texts per model (default 2000), and
// makes the test print the CPU time of both encoders.
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "lm/tokenizer/sentencepiece/model.h"
#include "lm/tokenizer/sentencepiece/sentencepiece.h"
#include "lm/tokenizer/text/unicode.h"
#include "model_writer.h"

namespace primus {
namespace {

std::string read(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

constexpr const char* kCount = "PRIMUS_SENTENCEPIECE_TEXTS";

int64_t texts_per_model() {
  const char* const count = std::getenv(kCount);
  return count == nullptr ? 2000 : std::atoll(count);
}

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Texts that make scores tie: pieces of the model one after another, runs, and characters inside and outside
// the vocabulary.
class Texts {
 public:
  explicit Texts(const std::string& model) {
    for (const auto& piece : sentencepiece::parse_model(model, "model").pieces) {
      std::string text = piece.text;
      for (size_t at; (at = text.find(kMark)) != std::string::npos;) text.replace(at, kMark.size(), " ");
      pieces_.push_back(std::move(text));
    }
  }

  std::string next() {
    std::string text;
    // Most texts are short, because the rounding error of the sums grows with the length of a text.
    for (size_t parts = 1 + below(below(50) == 0 ? 300 : 12); parts > 0; --parts) {
      switch (below(8)) {
        case 0:
          text += ' ';
          break;
        case 1:
          text.append(1 + below(12), static_cast<char>('a' + below(4)));
          break;
        case 2:
          unicode::append(character(), text);
          break;
        case 3: {
          const std::string& piece = pieces_[below(pieces_.size())];
          for (size_t times = 1 + below(6); times > 0; --times) text += piece;
          break;
        }
        case 4:
          for (size_t count = 1 + below(10); count > 0; --count) text += static_cast<char>(' ' + below(95));
          break;
        default:
          text += pieces_[below(pieces_.size())];
      }
    }
    return text;
  }

 private:
  size_t below(size_t limit) { return static_cast<size_t>(generator_() % limit); }
  char32_t character() {
    constexpr char32_t kSurrogates = 0xD800, kBehindSurrogates = 0xE000, kEnd = 0x110000;
    const char32_t limits[] = {0x100, 0x800, 0x3100, 0x10000, kEnd};
    const auto c = static_cast<char32_t>(1 + below(limits[below(std::size(limits))] - 1));
    return c >= kSurrogates && c < kBehindSurrogates ? U'x' : c;
  }

  std::vector<std::string> pieces_;
  std::mt19937_64 generator_{20261122};
};

// Returns whether two segmentations have equal sums of scores, up to rounding. Unknown characters and byte
// tokens count as 0.
bool tied(const std::vector<int32_t>& ours, const std::vector<int>& theirs,
          const std::vector<sentencepiece::Piece>& pieces) {
  double size = 0;
  const auto sum = [&](const auto& ids) {
    double result = 0;
    for (const int id : ids) {
      const sentencepiece::Piece& piece = pieces[static_cast<size_t>(id)];
      if (piece.type != sentencepiece::PieceType::kNormal) continue;
      result += static_cast<double>(piece.score);
      size += std::abs(static_cast<double>(piece.score));
    }
    return result;
  };
  // Each of n additions rounds by at most half a unit in the last place.
  const double n = static_cast<double>(ours.size() + theirs.size());
  return std::abs(sum(ours) - sum(theirs)) <= n * size * 0x1p-24;
}

void compare(const std::string& model) {
  const auto tokenizer = make_sentencepiece_tokenizer(model, "model", "SentencePieceTokenizer");
  ::sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(model).ok());
  Texts texts(model);
  const sentencepiece::Model parsed = sentencepiece::parse_model(model, "model");
  const bool unigram = parsed.type == sentencepiece::ModelType::kUnigram;
  const std::vector<sentencepiece::Piece>& pieces = parsed.pieces;
  int64_t different = 0;
  double ours = 0, theirs = 0;
  size_t bytes = 0;
  for (int64_t i = 0; i < texts_per_model(); ++i) {
    const std::string text = texts.next();
    bytes += text.size();
    std::vector<int> expected;
    theirs -= processor_seconds();
    ASSERT_TRUE(library.Encode(text, &expected).ok());
    theirs += processor_seconds();
    ours -= processor_seconds();
    const std::vector<int32_t> ids = tokenizer->encode(text, false);
    ours += processor_seconds();
    if (ids == expected || (unigram && tied(ids, expected, pieces)) || ++different > 1) continue;
    EXPECT_EQ(ids, expected) << "text " << i << ": " << text;
  }
  EXPECT_EQ(different, 0) << "of " << texts_per_model();
  if (std::getenv(kCount) == nullptr) return;
  const double megabytes = 1e-6 * static_cast<double>(bytes);
  std::printf("%lld texts: %.2f MB/s, the library %.2f MB/s\n", static_cast<long long>(texts_per_model()),
              megabytes / ours, megabytes / theirs);
}

const std::string kGolden = PRIMUS_SOURCE_DIR "/tests/golden/tokenizers/";

// Returns pieces for all strings of up to five letters a and b, some also after a space, with scores from
// score(length, n).
template <class Score>
std::string all_short_pieces(const Score& score) {
  std::string pieces;
  int n = 0;
  for (size_t length = 1; length <= 5; ++length) {
    for (unsigned bits = 0; bits < 1U << length; ++bits) {
      std::string word;
      for (size_t i = 0; i < length; ++i) word += (bits >> i & 1) != 0 ? 'b' : 'a';
      pieces += piece(word, score(length, n++));
      if (length < 4) pieces += piece(kMark + word, score(length + 1, n++));
    }
  }
  return pieces + piece(kMark, score(1, n));
}

TEST(SentencePieceLibrary, TrainedBpe) { compare(read(kGolden + "sp_bpe.model")); }

TEST(SentencePieceLibrary, TrainedUnigram) { compare(read(kGolden + "sp_unigram.model")); }

TEST(SentencePieceLibrary, BpeWhoseScoresTie) {
  compare(roles() + byte_pieces() +
          all_short_pieces([](size_t, int n) { return static_cast<float>(-(n % 3)); }) + trainer(kBpe, true));
}

TEST(SentencePieceLibrary, UnigramWhoseSumsTie) {
  // A piece's score is proportional to its length, so all segmentations tie.
  compare(roles() + all_short_pieces([](size_t length, int) { return -static_cast<float>(length); }) +
          trainer(kUnigram));
}

TEST(SentencePieceLibrary, UnigramWhoseSumsTieButForRounding) {
  // Tenths are not exact in binary, so sums that are equal in decimal differ by rounding errors. The rounding
  // errors differ between the positions of a text, and determine which segmentation is chosen.
  compare(roles() + byte_pieces() +
          all_short_pieces([](size_t length, int) { return -0.1F * static_cast<float>(length); }) +
          trainer(kUnigram, true));
}

TEST(SentencePieceLibrary, UserDefinedPieces) {
  for (const ModelType type : {kBpe, kUnigram}) {
    compare(
        roles() + piece("ac", 0, kUser) + piece("c b", 0, kUser) + piece("bca", 0, kUser) +
        all_short_pieces([](size_t length, int n) { return -1.3F * static_cast<float>(length + n % 2); }) +
        trainer(type));
  }
}

}  // namespace
}  // namespace primus
