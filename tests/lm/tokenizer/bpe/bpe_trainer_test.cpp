#include "lm/tokenizer/bpe/bpe_trainer.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "lm/tokenizer/huggingface/huggingface.h"

namespace primus {
namespace {

std::unique_ptr<const Tokenizer> load(std::string json) {
  HuggingFaceFiles files;
  files.tokenizer_json = std::move(json);
  return make_huggingface_tokenizer(std::move(files), "HuggingFaceTokenizer");
}

std::string text_of_words(int count) {
  const char* const words[] = {"the",   "then",   "there", "other", "mother",
                               "naïve", "日本語", "42",    "\n",    "don't"};
  std::string text;
  unsigned state = 1;
  for (int i = 0; i < count; ++i) {
    state = state * 1103515245 + 12345;
    text += words[(state >> 16) % 10];
    text += ' ';
  }
  return text;
}

TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  BpeTrainer trainer({.vocab_size = 1 + 256 + 2, .min_frequency = 1});
  trainer.add("ab ab ab bc bc abc");
  const auto tokenizer = load(trainer.train());
  EXPECT_EQ(tokenizer->vocab_size(), 259);
  // "ab" occurs in four words. After the merge of "ab", " ab" occurs in three words and " bc" in two words.
  EXPECT_EQ(tokenizer->token_text(257), "ab");
  EXPECT_EQ(tokenizer->token_text(258), "Ġab");
}

TEST(BpeTrainer, TheWrittenTokenizerRoundTrips) {
  BpeTrainer trainer({.vocab_size = 400, .special_tokens = {"<|begin|>", "<|endoftext|>"}});
  const std::string text = text_of_words(2000);
  trainer.add(text);
  const auto tokenizer = load(trainer.train());
  const auto ids = tokenizer->encode(text);
  EXPECT_LT(ids.size(), text.size() / 3);
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_EQ(tokenizer->special_ids().eod, 1);
  EXPECT_EQ(tokenizer->token_text(2), "!");
  const std::string strange = "\x01\xF0\x9F\x98\x80 e\xCC\x81 <|endoftext|>";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(strange), /*skip_special=*/false), strange);
}

// Trains by the textbook algorithm, which counts all pairs again for every merge.
std::vector<std::string> merge_naively(const std::string& text, int wanted) {
  std::map<std::vector<std::string>, int> words;
  TextBudget budget(text.size());
  make_regex_split(kLlama3Pattern, SplitBehavior::kIsolated, false)
      ->split({text, true}, budget, [&](Piece piece) {
        std::vector<std::string> symbols;
        for (const char c : piece.text) symbols.emplace_back(1, c);
        ++words[symbols];
      });
  std::vector<std::string> order;  // tokens by id, to break ties
  // GPT-2's alphabet starts with printable ASCII, in order. The texts have only blanks and letters.
  for (char c = '!'; c <= '~'; ++c) order.emplace_back(1, c);
  order.emplace_back(" ");
  std::vector<std::string> merges;
  const auto id = [&](const std::string& token) {
    return std::find(order.begin(), order.end(), token) - order.begin();
  };
  while (static_cast<int>(merges.size()) < wanted) {
    std::map<std::pair<std::string, std::string>, int> pairs;
    for (const auto& [symbols, count] : words) {
      for (size_t i = 0; i + 1 < symbols.size(); ++i) pairs[{symbols[i], symbols[i + 1]}] += count;
    }
    const std::pair<const std::pair<std::string, std::string>, int>* best = nullptr;
    for (const auto& entry : pairs) {
      const auto key = [&](const auto& e) {
        return std::tuple(-e.second, id(e.first.first), id(e.first.second));
      };
      if (best == nullptr || key(entry) < key(*best)) best = &entry;
    }
    if (best == nullptr || best->second < 2) break;
    const auto [left, right] = best->first;
    std::map<std::vector<std::string>, int> next;
    for (const auto& [symbols, count] : words) {
      std::vector<std::string> merged;
      for (size_t i = 0; i < symbols.size(); ++i) {
        if (i + 1 < symbols.size() && symbols[i] == left && symbols[i + 1] == right) {
          merged.push_back(left + right);
          ++i;
        } else {
          merged.push_back(symbols[i]);
        }
      }
      next[merged] += count;
    }
    words = std::move(next);
    order.push_back(left + right);
    merges.push_back(left + right);
  }
  return merges;
}

TEST(BpeTrainer, EqualsTheTextbookAlgorithm) {
  std::string text;
  unsigned state = 7;
  for (int i = 0; i < 3000; ++i) {
    state = state * 1103515245 + 12345;
    const unsigned draw = (state >> 16) % 8;
    text += draw < 2 ? ' ' : static_cast<char>('a' + draw % 4);  // long runs, overlapping pairs, many ties
  }
  BpeTrainer trainer({.vocab_size = 1 + 256 + 150});
  trainer.add(text);
  const auto tokenizer = load(trainer.train());
  const auto expected = merge_naively(text, 150);
  ASSERT_EQ(tokenizer->vocab_size(), 257 + static_cast<int32_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(tokenizer->decode(std::vector{257 + static_cast<int32_t>(i)}), expected[i]) << i;
  }
}

TEST(BpeTrainer, DoesNotDependOnTheOrderOfTexts) {
  const std::string first = text_of_words(300), second = "some other words, words and words";
  BpeTrainer one({.vocab_size = 330}), two({.vocab_size = 330}), three({.vocab_size = 330});
  one.add(first);
  one.add(second);
  two.add(second);
  three.add(first);
  two.add(std::move(three));
  EXPECT_EQ(one.train(), two.train());
}

// Special tokens for chat formats become one token each at any position, and decoded text leaves them out.
TEST(BpeTrainer, SpecialTokensAreEncodedAsSpecialTokens) {
  BpeTrainer trainer({.vocab_size = 300, .special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}});
  trainer.add(text_of_words(300));
  const auto tokenizer = load(trainer.train());
  EXPECT_EQ(tokenizer->special_ids().eod, 0);
  EXPECT_EQ(tokenizer->token_id("<|im_start|>"), 1);
  EXPECT_EQ(tokenizer->token_id("<|im_end|>"), 2);
  const auto ids = tokenizer->encode("<|im_start|>user\nhi<|im_end|>", false);
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(ids.back(), 2);
  EXPECT_EQ(std::ranges::count_if(ids, [](std::int32_t id) { return id < 3; }), 2);
  EXPECT_EQ(tokenizer->decode(ids), "user\nhi");
  EXPECT_EQ(tokenizer->decode(ids, /*skip_special=*/false), "<|im_start|>user\nhi<|im_end|>");
}

TEST(BpeTrainer, RefusesImpossibleSettings) {
  EXPECT_THROW(BpeTrainer({.vocab_size = 256}), Error);
  EXPECT_THROW(BpeTrainer({.vocab_size = 300}).train(), Error);
  BpeTrainer trainer({.vocab_size = 300, .special_tokens = {"a"}});
  trainer.add("text");
  EXPECT_THROW(trainer.train(), Error);
}

}  // namespace
}  // namespace primus
