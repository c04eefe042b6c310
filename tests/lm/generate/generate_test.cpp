#include "lm/generate/generate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tiny_model.h"

namespace primus {
namespace {

using test::chain_decoder;
using test::chain_of;
using test::random_decoder;
using test::some_tokens;
using test::tiny_config;

constexpr std::uint64_t kSeed = 5;

std::vector<std::int32_t> bytes(std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

TEST(Generate, GreedyTextIsWhatTeacherForcingPredicts) {
  const ModelConfig config = tiny_config();
  const auto prompt = some_tokens(10, config.vocab);
  const auto decoder = random_decoder(test::cpu(), config, kSeed, {.capacity = 40});
  const Generation result = generate(*decoder, prompt, {.sampling = {.temperature = 0}, .max_tokens = 20});
  ASSERT_EQ(result.ids.size(), 20U);
  EXPECT_EQ(result.reason, StopReason::kMaxTokens);

  std::vector<std::int32_t> all = prompt;
  all.insert(all.end(), result.ids.begin(), result.ids.end());
  const auto logits = test::teacher_forcing(config, kSeed, all);
  for (std::size_t i = 0; i < result.ids.size(); ++i) {
    const std::vector<float>& row = logits[prompt.size() + i - 1];
    EXPECT_EQ(result.ids[i], std::max_element(row.begin(), row.end()) - row.begin()) << "token " << i;
  }
}

TEST(Generate, TheSeedDecidesTheText) {
  const ModelConfig config = tiny_config();
  const auto prompt = some_tokens(4, config.vocab);
  auto write = [&](std::uint64_t seed) {
    const auto decoder = random_decoder(test::cpu(), config, kSeed, {.capacity = 40});
    return generate(*decoder, prompt, {.sampling = {.temperature = 1.5, .seed = seed}, .max_tokens = 24}).ids;
  };
  EXPECT_EQ(write(1), write(1));
  EXPECT_NE(write(1), write(2));
}

TEST(Generate, ContinuingFromTheMiddleGivesTheSameText) {
  const ModelConfig config = tiny_config();
  const auto prompt = some_tokens(4, config.vocab);
  const GenerateSettings settings{.sampling = {.temperature = 1.2, .seed = 9}, .max_tokens = 20};
  const auto decoder = random_decoder(test::cpu(), config, kSeed, {.capacity = 40});
  const auto whole = generate(*decoder, prompt, settings).ids;
  std::vector<std::int32_t> begun = prompt;
  begun.insert(begun.end(), whole.begin(), whole.begin() + 8);
  GenerateSettings rest = settings;
  rest.max_tokens = 12;
  EXPECT_EQ(generate(*decoder, begun, rest).ids, std::vector<std::int32_t>(whole.begin() + 8, whole.end()));
}

TEST(Generate, StopsAtStopTokensAndLimits) {
  const auto decoder = chain_decoder(chain_of("abcdef"), 32);
  auto write = [&](GenerateSettings settings, const std::function<bool(std::int32_t)>& on_token = {}) {
    settings.sampling.temperature = 0;
    return generate(*decoder, bytes("a"), settings, on_token);
  };
  const Generation stopped = write({.stop_ids = {'d'}});
  EXPECT_EQ(stopped.ids, bytes("bc"));
  EXPECT_EQ(stopped.reason, StopReason::kStopToken);

  const std::int64_t read = decoder->counts().read;
  const Generation limited = write({.max_tokens = 3});
  EXPECT_EQ(limited.ids, bytes("bcd"));
  EXPECT_EQ(limited.reason, StopReason::kMaxTokens);
  EXPECT_EQ(decoder->counts().read - read, 3);  // the last token is written, not read

  const Generation cut = write({}, [](std::int32_t id) { return id != 'c'; });
  EXPECT_EQ(cut.ids, bytes("bc"));
  EXPECT_EQ(cut.reason, StopReason::kCallback);

  EXPECT_TRUE(write({.max_tokens = 0}).ids.empty());
}

TEST(Generate, EndsWhenTheContextIsFull) {
  const auto decoder = chain_decoder(chain_of("abcdefgh"), 4);
  const Generation result =
      generate(*decoder, bytes("a"), {.sampling = {.temperature = 0}, .max_tokens = 100});
  EXPECT_EQ(result.reason, StopReason::kContextFull);
  EXPECT_EQ(result.ids, bytes("bcde"));  // three of these are read; the fourth is predicted
}

TEST(Generate, NeverChoosesAnIdThatTheTokenizerLacks) {
  const auto decoder = chain_decoder({{'a', 280}, {'a', 'z'}}, 8);
  EXPECT_EQ(
      generate(*decoder, bytes("a"), {.sampling = {.temperature = 0}, .max_tokens = 1, .vocab = 257}).ids,
      bytes("z"));
}

TEST(FitPrompt, KeepsTheEndOfThePrompt) {
  const auto tokens = some_tokens(10, 96);
  EXPECT_EQ(fit_prompt(tokens, 100, 20).size(), 10U);
  const auto kept = fit_prompt(tokens, 8, 3);
  EXPECT_EQ(kept.size(), 5U);
  EXPECT_EQ(kept.back(), tokens.back());
  EXPECT_EQ(fit_prompt(tokens, 8, 100).size(), 4U);  // half of the context is for the prompt
  EXPECT_EQ(fit_prompt(tokens, 1, 100).size(), 1U);
}

TEST(OpeningWords, AreCompleteAndBeginASentenceIfPossible) {
  const auto words = [](std::string_view text, std::size_t maximum = 4) {
    return std::string(opening_words(text, maximum));
  };
  EXPECT_EQ(words("ftware licenses tied to the underly"), "licenses tied to the");
  EXPECT_EQ(words("ftware licenses tied. The name of it is"), "The name of it");
  EXPECT_EQ(words("ftware licenses tied\n\nThe name of it is"), "The name of it");
  EXPECT_EQ(words("is it so? No, it is"), "it so? No, it") << "two words are too few for a sentence";
  EXPECT_EQ(words("one two thr"), "two");
  EXPECT_EQ(words("one two"), "") << "'two' may be cut off";
  EXPECT_EQ(words("one"), "");
  EXPECT_EQ(words(""), "");
  EXPECT_EQ(words(" \n "), "");
  EXPECT_EQ(words("a b c d e f", 2), "b c");
  EXPECT_EQ(words("word e.g. this one is "), "this one is");
}

}  // namespace
}  // namespace primus
