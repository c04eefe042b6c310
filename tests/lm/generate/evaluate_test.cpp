#include "lm/generate/evaluate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "../../base/temporary_folder.h"
#include "lm/data/indexed_dataset.h"
#include "lm/data/made_by.h"
#include "lm/data/tiny_tokenizers.h"
#include "lm/tokenizer/simple.h"
#include "tiny_model.h"

namespace primus {
namespace {

using test::some_tokens;
using test::TemporaryFolder;
using test::tiny_config;

constexpr std::uint64_t kSeed = 3;

std::unique_ptr<LossEvaluator> evaluator(const ModelConfig& config, const EvaluatorSettings& settings,
                                         bool random = true) {
  auto result = std::make_unique<LossEvaluator>(test::cpu(), config, builtin_families(), settings);
  if (random) result->store().initialize(result->rank().context(), kSeed);
  result->rank().compute().synchronize();
  return result;
}

// Returns -ln p of a token.
double loss_of(const std::vector<float>& logits, std::int32_t token) {
  double total = 0;
  for (const float z : logits) total += std::exp(static_cast<double>(z));
  return std::log(total) - static_cast<double>(logits[static_cast<std::size_t>(token)]);
}

// Returns the sum of -ln p over a window, from the logits of one pass.
double reference_loss(const ModelConfig& config, const std::vector<std::int32_t>& tokens) {
  const auto logits = test::teacher_forcing(config, kSeed, tokens);
  double sum = 0;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) sum += loss_of(logits[i], tokens[i + 1]);
  return sum;
}

TEST(LossEvaluator, OneWindowEqualsOnePass) {
  const ModelConfig config = tiny_config();
  const auto tokens = some_tokens(17, config.vocab);
  const auto e = evaluator(config, {.sequence = 16, .batch = 2});
  e->add(tokens);
  e->finish();
  EXPECT_EQ(e->tokens(), 16);
  const double expected = reference_loss(config, tokens);
  EXPECT_NEAR(e->total(), expected, 1e-5 * expected);
}

TEST(LossEvaluator, WindowsFollowEachOtherAndTheLastMayBeShort) {
  const ModelConfig config = tiny_config();
  const auto tokens = some_tokens(40, config.vocab);  // 39 predictions: windows of 16, 16 and 7
  double expected = 0;
  for (std::size_t begin = 0; begin + 1 < tokens.size(); begin += 16) {
    const std::size_t end = std::min(tokens.size(), begin + 17);
    expected += reference_loss(config, {tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                        tokens.begin() + static_cast<std::ptrdiff_t>(end)});
  }
  for (const std::int64_t batch : {1, 2, 3, 5}) {
    const auto e = evaluator(config, {.sequence = 16, .batch = batch});
    e->add(std::span(tokens).first(5));  // in pieces of any size
    e->add(std::span(tokens).subspan(5));
    e->finish();
    EXPECT_EQ(e->tokens(), 39);
    EXPECT_NEAR(e->total(), expected, 1e-5 * expected) << "batch " << batch;
  }
}

// A NaN weight gives an error that names the operator with the first NaN.
TEST(LossEvaluator, ANanLossIsAnErrorWithItsLocation) {
  const ModelConfig config = tiny_config();
  const auto tokens = some_tokens(17, config.vocab);
  const auto e = evaluator(config, {.sequence = 16, .batch = 1});
  for (engine::Parameter& p : e->store().parameters()) {
    if (p.name.starts_with("layers.1.") && p.name.find("norm") != std::string::npos)
      static_cast<float*>(p.value.data)[3] = std::numeric_limits<float>::quiet_NaN();
  }
  try {
    e->add(tokens);
    e->finish();
    FAIL() << e->mean();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNumerics);
    EXPECT_EQ(error.exit_code(), 3);
    const std::string what = error.what();
    EXPECT_TRUE(what.starts_with("the loss is nan within the first 16 tokens: layers.1.")) << what;
    EXPECT_TRUE(what.ends_with(" is the first operator with such a result")) << what;
  }
}

// As in fine-tuning, each conversation is separate, and only labels to learn count.
TEST(Conversations, OnlyAnswersHaveLoss) {
  const ModelConfig config = tiny_config();
  data::TokenizedConversations conversations;
  const auto add = [&](std::size_t length, std::vector<std::size_t> learned) {
    const auto ids = some_tokens(length + conversations.ids.size(), config.vocab);
    conversations.ids.insert(conversations.ids.end(), ids.end() - static_cast<std::ptrdiff_t>(length),
                             ids.end());
    std::vector<std::uint8_t> marks(length);
    for (const std::size_t i : learned) marks[i] = 1;
    conversations.learned.insert(conversations.learned.end(), marks.begin(), marks.end());
    conversations.ends.push_back(static_cast<std::int64_t>(conversations.ids.size()));
  };
  add(9, {5, 6, 7, 8});
  add(17, {0, 3, 15, 16});        // its first token is never predicted
  add(12, {});                    // nothing to learn
  add(30, {10, 16, 17, 28, 29});  // its last 13 tokens do not fit
  double expected = 0;
  for (const auto& [i, learned] :
       {std::pair<std::size_t, std::vector<std::size_t>>{0, {5, 6, 7, 8}}, {1, {3, 15, 16}}, {3, {10, 16}}}) {
    const auto begin = conversations.ids.begin() + conversations.begin(i);
    const std::vector<std::int32_t> tokens(begin,
                                           begin + std::min<std::int64_t>(conversations.tokens(i), 17));
    const auto logits = test::teacher_forcing(config, kSeed, tokens);
    for (const std::size_t at : learned) expected += loss_of(logits[at - 1], tokens[at]);
  }
  for (const std::int64_t batch : {1, 2, 5}) {
    const auto e = evaluator(config, {.sequence = 16, .batch = batch});
    const ConversationReport report = evaluate_conversations(*e, conversations, 16);
    EXPECT_EQ(report.tokens, 9);
    EXPECT_EQ(report.conversations, 3);
    EXPECT_EQ(report.truncated, 1);
    EXPECT_EQ(report.without_answer, 1);
    EXPECT_NEAR(report.loss, expected / 9, 1e-5 * expected / 9) << "batch " << batch;
    EXPECT_DOUBLE_EQ(report.perplexity, std::exp(report.loss));
  }
  std::ranges::fill(conversations.learned, 0);
  const auto e = evaluator(config, {.sequence = 16});
  EXPECT_THROW(evaluate_conversations(*e, conversations, 16), Error);
}

TEST(LossEvaluator, RefusesIdsBeyondTheVocabulary) {
  const ModelConfig config = tiny_config();
  const auto e = evaluator(config, {.sequence = 16});
  const std::vector<std::int32_t> beyond{1, static_cast<std::int32_t>(config.vocab)};
  EXPECT_THROW(e->add(beyond), Error);
  EXPECT_THROW(evaluator(config, {.sequence = 65}), Error);
}

// Returns a model of zeros, which gives each of its 384 tokens an equal probability.
ModelConfig uniform_config() {
  ModelConfig config = tiny_config();
  config.vocab = 384;
  return config;
}

TEST(EvaluateLoss, CountsTextJsonLinesAndIndexedDataEqually) {
  const TemporaryFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  write_file(folder.path() / "a.txt", "In the beginning.\nAnd \xc3\xa9.\n");
  write_file(folder.path() / "a.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"defg\"}\n");
  data::IndexedDatasetWriter writer(folder.path() / "b", data::TokenType::kU16);
  const std::vector<std::int32_t> ids{'a', 'b', 'c', 256};
  writer.add_sequence(ids);
  writer.end_document();
  writer.finish();

  auto evaluate = [&](const std::string& name, const Tokenizer* with) {
    const auto e = evaluator(uniform_config(), {.sequence = 8, .batch = 2}, false);
    return evaluate_loss(*e, with, {.inputs = {(folder.path() / name).string()}});
  };
  const double uniform = std::log(384.0);
  const LossReport text = evaluate("a.txt", tokenizer.get());
  EXPECT_EQ(text.bytes, 26U);
  EXPECT_EQ(text.tokens, 26);  // 26 bytes and the end of the document; the first token is not predicted
  EXPECT_EQ(text.documents, 1);
  EXPECT_NEAR(text.loss, uniform, 1e-5);
  EXPECT_NEAR(text.perplexity, 384, 1e-2);
  EXPECT_NEAR(text.bits_per_byte.value(), std::log2(384.0), 1e-4);

  const LossReport lines = evaluate("a.jsonl", tokenizer.get());
  EXPECT_EQ(lines.documents, 2);
  EXPECT_EQ(lines.bytes, 7U);
  EXPECT_EQ(lines.tokens, 8);  // 3 + 1 + 4 + 1, without the first

  const LossReport indexed = evaluate("b", tokenizer.get());
  EXPECT_EQ(indexed.tokens, 3);
  EXPECT_EQ(indexed.bytes, 3U);
  // A document also counts if max_tokens cuts the document off.
  const auto documents = [&](const std::string& name, std::int64_t max_tokens) {
    const auto e = evaluator(uniform_config(), {.sequence = 8, .batch = 2}, false);
    return evaluate_loss(*e, tokenizer.get(),
                         {.inputs = {(folder.path() / name).string()}, .max_tokens = max_tokens})
        .documents;
  };
  EXPECT_EQ(documents("a.txt", 5), 1);
  EXPECT_EQ(documents("a.jsonl", 3), 1);  // counts the first document
  EXPECT_EQ(documents("a.jsonl", 4), 2);
  EXPECT_EQ(documents("b", 2), 1);
  EXPECT_FALSE(evaluate("b", nullptr).bits_per_byte.has_value());
  EXPECT_THROW(evaluate("a.txt", nullptr), Error);
}

// A special token that a text spells out has the bytes of its spelling; the token that ends a document has
// none.
TEST(EvaluateLoss, CountsTheBytesOfSpecialTokensInEveryForm) {
  const TemporaryFolder folder;
  const auto tokenizer = data::tiny_tokenizer(folder, {}, {"<end>", "<user>"});
  const std::string text = "<user>ab<end>cd";
  write_file(folder.path() / "a.txt", text);
  data::IndexedDatasetWriter writer(folder.path() / "b", data::TokenType::kU16);
  std::vector<std::int32_t> ids = tokenizer->encode(text);
  ASSERT_EQ(ids.size(), 6U);
  ids.push_back(tokenizer->special_ids().eos.value());
  writer.add_sequence(ids);
  writer.end_document();
  writer.finish();
  const auto bytes = [&](const char* name, std::int64_t max_tokens) {
    const auto e = evaluator(uniform_config(), {.sequence = 8, .batch = 2}, false);
    return evaluate_loss(*e, tokenizer.get(),
                         {.inputs = {(folder.path() / name).string()}, .max_tokens = max_tokens})
        .bytes;
  };
  for (const char* name : {"a.txt", "b"}) {
    EXPECT_EQ(bytes(name, 0), text.size()) << name;
    EXPECT_EQ(bytes(name, 3), std::string("<user>ab<end>").size()) << name;
  }
}

TEST(EvaluateLoss, TokensBeyondTheVocabularyAreNamedWithTheirPlace) {
  const TemporaryFolder folder;
  const Path prefix = folder.path() / "b";
  data::IndexedDatasetWriter writer(prefix, data::TokenType::kU16);
  writer.add_sequence(std::vector<std::int32_t>{1, 2, 3});
  writer.end_document();
  writer.add_sequence(std::vector<std::int32_t>{4, 5});
  writer.add_sequence(std::vector<std::int32_t>{6, 384, 7});
  writer.end_document();
  writer.finish();
  const auto evaluate = [&](std::int64_t max_tokens) {
    const auto e = evaluator(uniform_config(), {.sequence = 8}, false);
    return evaluate_loss(*e, nullptr, {.inputs = {prefix.string()}, .max_tokens = max_tokens}).tokens;
  };
  try {
    evaluate(0);
    FAIL() << "a token beyond the vocabulary was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(
        std::string(error.what()),
        prefix.string() + ": document 1 has the token 384 at position 3, outside the vocabulary of 384");
    EXPECT_NE(error.hint().find("data inspect"), std::string::npos);
  }
  EXPECT_EQ(evaluate(5), 5);  // ends before that token
}

// With another tokenizer, the ids would mean another text.
TEST(EvaluateLoss, IdsOfAnotherTokenizerAreRefused) {
  const TemporaryFolder folder;
  const Path prefix = folder.path() / "b";
  data::IndexedDatasetWriter writer(prefix, data::TokenType::kU16);
  writer.add_sequence(std::vector<std::int32_t>{1, 2, 3});
  writer.end_document();
  const auto tokenizer = make_byte_tokenizer();
  writer.complete();
  data::attach_made_by(writer, *tokenizer);
  writer.finish();
  const auto evaluate = [&] {
    const auto e = evaluator(uniform_config(), {.sequence = 8}, false);
    return evaluate_loss(*e, tokenizer.get(), {.inputs = {prefix.string()}}).tokens;
  };
  EXPECT_EQ(evaluate(), 2);
  std::string note = read_file(prefix.string() + ".tokenizer.json");
  const std::size_t at = note.find("\"fingerprint\"");
  ASSERT_NE(at, std::string::npos);
  note.replace(note.find_first_of("0123456789abcdef", at + 15), 1, "x");
  write_file(prefix.string() + ".tokenizer.json", note);
  EXPECT_THROW(evaluate(), Error);
}

TEST(EvaluateLoss, StopsAfterEnoughTokens) {
  const TemporaryFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "{\"text\": \"a line of text\"}\n";
  write_file(folder.path() / "a.jsonl", text);
  const auto e = evaluator(uniform_config(), {.sequence = 16}, false);
  const LossReport report =
      evaluate_loss(*e, tokenizer.get(),
                    {.inputs = {(folder.path() / "a.jsonl").string(), (folder.path() / "none").string()},
                     .max_tokens = 100});
  EXPECT_EQ(report.tokens, 100);
  EXPECT_LE(report.bytes, 101U);  // bytes of text: the end-of-document token has none
}

// Reports the finished share, from which a percentage and the time left are computed.
TEST(EvaluateLoss, ReportsProgress) {
  const TemporaryFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  std::string text;
  for (int i = 0; i < 6000; ++i) text += "Ye shall not eat of it, neither shall ye touch it.\n\n";
  write_file(folder.path() / "a.txt", text);  // two blocks
  write_file(folder.path() / "b.txt", text);
  ModelConfig smallest = uniform_config();  // more than a million tokens are read
  smallest.layers = 1, smallest.hidden = smallest.ffn = 8, smallest.heads = smallest.kv_heads = 1;
  const auto shares = [&](EvaluateOptions options) {
    std::vector<double> seen;
    options.progress = [&](const EvaluateProgress& now) { seen.push_back(now.share); };
    const auto e = evaluator(smallest, {.sequence = 64, .batch = 64}, false);
    evaluate_loss(*e, tokenizer.get(), options);
    EXPECT_TRUE(std::ranges::is_sorted(seen));
    EXPECT_DOUBLE_EQ(seen.back(), 1);
    return seen;
  };
  const std::string a = (folder.path() / "a.txt").string(), b = (folder.path() / "b.txt").string();
  const std::vector<double> one = shares({.inputs = {a}});
  EXPECT_LT(one.front(), 0.1);
  EXPECT_GT(one.size(), 10U);
  EXPECT_NEAR(one[one.size() / 2], 0.5, 0.1);
  EXPECT_NEAR(shares({.inputs = {a, b}})[one.size()], 0.5, 0.1);
  EXPECT_NEAR(shares({.inputs = {folder.path().string()}})[one.size()], 0.5, 0.1);
  EXPECT_LT(shares({.inputs = {a}, .max_tokens = 100000}).front(), 0.6);
  // A file that is read as one block.
  write_file(folder.path() / "c.jsonl", "{\"text\": \"a\"}\n{\"text\": \"bcdefghi\"}\n");
  EXPECT_LT(shares({.inputs = {(folder.path() / "c.jsonl").string()}}).front(), 0.5);
}

TEST(EvaluateLoss, RefusesEmptyData) {
  const TemporaryFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  write_file(folder.path() / "bad.jsonl", "{\"text\": \"a\"}\nnonsense\n");
  const auto e = evaluator(uniform_config(), {.sequence = 16}, false);
  EXPECT_THROW(evaluate_loss(*e, tokenizer.get(), {.inputs = {}}), Error);
  EXPECT_THROW(evaluate_loss(*e, tokenizer.get(), {.inputs = {(folder.path() / "bad.jsonl").string()}}),
               Error);
}

// Replacing invalid characters would change the text and its loss.
TEST(EvaluateLoss, RefusesTextThatIsNotUtf8) {
  const TemporaryFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  const Path file = folder.path() / "utf16.txt";
  write_file(file, std::string("in\n\xff\xfe"
                               "a\0b\0",
                               9));
  const auto e = evaluator(uniform_config(), {.sequence = 16}, false);
  try {
    evaluate_loss(*e, tokenizer.get(), {.inputs = {file.string()}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.location(), file.string() + ":2:1");
    EXPECT_STREQ(error.what(), "not valid UTF-8 (byte 0xFF)");
  }
}

}  // namespace
}  // namespace primus
