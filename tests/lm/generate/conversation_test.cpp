#include "lm/generate/conversation.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lm/data/tiny_tokenizers.h"
#include "lm/model/blocks/layers.h"
#include "lm/tokenizer/simple.h"
#include "tiny_model.h"

namespace primus {
namespace {

using test::chain_decoder;
using test::chain_of;
using test::random_decoder;

// After "Assistant:" the model repeats " hey\nUser:" forever.
const auto kChain = chain_of(": hey\nUsr: ");

const GenerateSettings kGreedy{
    .sampling = {.temperature = 0}, .max_tokens = 40, .vocab = 257, .stop_ids = {256}};

// Returns a decoder with this capacity that writes `text` and then ends the text.
auto replies(std::string_view text, std::int64_t capacity) {
  auto chain = chain_of(text);
  chain.emplace_back(text.back(), 256);
  return chain_decoder(chain, capacity);
}

// Returns how many tokens of the last text the decoder held, including tokens that it had read for earlier
// texts.
class Held {
 public:
  explicit Held(const DecodeScheduler& decoder) : decoder_(decoder) {}
  std::int64_t operator()() {
    const std::int64_t now = decoder_.counts().read + decoder_.counts().shared;
    return now - std::exchange(before_, now);
  }

 private:
  const DecodeScheduler& decoder_;
  std::int64_t before_ = 0;
};

// Returns a callback that appends each piece of a reply to `text` and lets the reply continue.
auto collect(std::string& text) {
  return [&](std::string_view piece) {
    text += piece;
    return true;
  };
}

TEST(Conversation, TheReplyEndsIfTheModelBeginsAUserTurn) {
  const auto decoder = chain_decoder(chain_of(": hi\nUser:"), 512);
  Held held(*decoder);
  const auto tokenizer = make_byte_tokenizer();
  Conversation conversation(*decoder, *tokenizer, kGreedy);
  std::string streamed;
  const auto reply = conversation.say("Hello", collect(streamed));
  EXPECT_EQ(reply.text, "hi");
  EXPECT_EQ(streamed, "hi");
  EXPECT_EQ(reply.reason, StopReason::kCallback);
  // The new prompt has the reply without the user's turn that the model began. The last generated token was
  // never read, so it is not held.
  const std::string written = " hi\nUser:", again = "User: Hello\nAssistant: hi\nUser: And now?\nAssistant:";
  held();
  EXPECT_EQ(conversation.say("And now?").text, "hi");
  EXPECT_EQ(held(), static_cast<std::int64_t>(again.size() + written.size() - 1));
  EXPECT_EQ(conversation.turns(), 2U);
}

// The second model reads the turns again, because its keys and values differ.
TEST(Conversation, AnotherModelContinues) {
  const auto first = replies(": bye", 512), second = replies(": and", 512);
  Held held(*second);
  const auto tokenizer = make_byte_tokenizer(), same = make_byte_tokenizer();
  Conversation conversation(*first, *tokenizer, kGreedy);
  EXPECT_EQ(conversation.say("A").text, "bye");
  EXPECT_TRUE(conversation.use(*second, *same, kGreedy, nullptr));
  EXPECT_EQ(conversation.turns(), 1U);
  held();
  EXPECT_EQ(conversation.say("B").text, "and");
  const std::string read = "User: A\nAssistant: bye\nUser: B\nAssistant:", written = " and";
  EXPECT_EQ(held(), static_cast<std::int64_t>(read.size() + written.size()));
  EXPECT_EQ(conversation.turns(), 2U);
  // The tokens of plain turns belong to a tokenizer.
  const auto other = load_tokenizer("NullTokenizer", "256");
  EXPECT_FALSE(conversation.use(*first, *other, kGreedy, nullptr));
  EXPECT_EQ(conversation.turns(), 0U);
}

TEST(Conversation, TheReplyEndsAtTheEndOfTextToken) {
  const auto decoder = replies(": bye", 512);
  const auto tokenizer = make_byte_tokenizer();
  Conversation conversation(*decoder, *tokenizer, kGreedy);
  const auto reply = conversation.say("Hello");
  EXPECT_EQ(reply.text, "bye");
  EXPECT_EQ(reply.reason, StopReason::kStopToken);
}

TEST(Conversation, TextThatOnlyBeginsLikeATurnIsShown) {
  const auto decoder = replies(": a\nUsx", 512);
  const auto tokenizer = make_byte_tokenizer();
  Conversation conversation(*decoder, *tokenizer, kGreedy);
  std::string streamed;
  const auto reply = conversation.say("Hello", collect(streamed));
  EXPECT_EQ(reply.text, "a\nUsx");
  EXPECT_EQ(streamed, reply.text);
}

TEST(Conversation, ReadsOnlyNewTokens) {
  const auto decoder = replies(": ok", 512);
  Held held(*decoder);
  const auto tokenizer = make_byte_tokenizer();
  Conversation conversation(*decoder, *tokenizer, kGreedy);
  conversation.say("one");
  const std::string first = "User: one\nAssistant: ok", second = "\nUser: two\nAssistant: ok";
  EXPECT_EQ(decoder->counts().read, static_cast<std::int64_t>(first.size()));
  conversation.say("two");
  EXPECT_EQ(decoder->counts().read, static_cast<std::int64_t>(first.size() + second.size()));
  held();
  conversation.clear();
  conversation.say("one");
  EXPECT_EQ(held(), static_cast<std::int64_t>(first.size()));
}

TEST(Conversation, DropsTheOldestTurnsWhenTheContextIsFull) {
  const auto decoder = replies(": ok", 120);
  Held held(*decoder);
  const auto tokenizer = make_byte_tokenizer();
  Conversation conversation(*decoder, *tokenizer, kGreedy);
  std::size_t forgotten = 0;
  for (int i = 0; i < 10; ++i) {
    const auto reply = conversation.say("a line of words");
    EXPECT_EQ(reply.text, "ok") << i;
    forgotten += reply.forgotten_turns;
    EXPECT_LE(held(), 120);
  }
  EXPECT_EQ(forgotten + conversation.turns(), 10U);
  EXPECT_GE(forgotten, 7U);
}

TEST(Conversation, ReportsHowMuchOfALongTurnIsDropped) {
  auto chain = chain_of(": ok");
  chain.emplace_back('k', 256);
  const auto decoder = chain_decoder(chain, 120);
  const auto tokenizer = make_byte_tokenizer();
  Conversation conversation(*decoder, *tokenizer, kGreedy);
  EXPECT_EQ(conversation.say("short").lost_tokens, 0U);
  const std::string line(500, 'a');
  const auto reply = conversation.say(line);
  EXPECT_GT(reply.prompt_tokens, line.size());
  EXPECT_GT(reply.lost_tokens, 380U);  // at most 120 of more than 500 tokens fit
  EXPECT_LT(reply.lost_tokens, reply.prompt_tokens);
}

// When old turns are dropped, the token that starts the text stays first.
TEST(Conversation, DropsWholeTurnsAfterTheBosToken) {
  const data::TemporaryFolder folder;
  data::tiny_tokenizer(folder, {}, {"<|endoftext|>", "<s>"});  // 127 and 128
  auto json = nlohmann::json::parse(data::read_all(folder / "tokenizer.json"));
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", nlohmann::json::array()},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {128}}, {"tokens", {"<s>"}}}}}}};
  folder.write("tokenizer.json", json.dump());
  const auto tokenizer = load_tokenizer("HuggingFaceTokenizer", folder.path().string());
  ASSERT_EQ(tokenizer->frame().before, std::vector<std::int32_t>{128});
  auto chain = chain_of(": ok");
  chain.emplace_back('k', 127);
  const auto decoder = chain_decoder(chain, 120);
  Held held(*decoder);
  GenerateSettings settings = kGreedy;
  settings.vocab = 129;
  settings.stop_ids = {127};
  Conversation conversation(*decoder, *tokenizer, settings);
  const auto turn = std::string("\nUser: a line of words\nAssistant: ok").size();
  conversation.say("a line of words");
  EXPECT_EQ(held(), static_cast<std::int64_t>(turn));  // the first turn has <s> instead of a line end
  conversation.say("a line of words");
  held();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(conversation.say("a line of words").forgotten_turns, 1U);
    EXPECT_EQ(held(), static_cast<std::int64_t>(1 + 2 * turn)) << i;
  }
}

TEST(Conversation, LongTurnsLoseTheirBeginning) {
  const auto decoder = replies(": ok", 60);
  const auto tokenizer = make_byte_tokenizer();
  Conversation conversation(*decoder, *tokenizer, kGreedy);
  EXPECT_EQ(conversation.say(std::string(500, 'w')).text, "ok");
  EXPECT_EQ(conversation.say("short").text, "ok");
}

TEST(Conversation, EndsTheReplyAtTheTokenLimit) {
  const auto decoder = chain_decoder(kChain, 512);
  const auto tokenizer = make_byte_tokenizer();
  GenerateSettings settings = kGreedy;
  settings.max_tokens = 5;
  Conversation conversation(*decoder, *tokenizer, settings);
  const auto reply = conversation.say("x");
  EXPECT_EQ(reply.text, "hey\n");  // " hey\n" are five bytes
  EXPECT_EQ(reply.reason, StopReason::kMaxTokens);
}

// A fine-tuned model gets prompts in the format of its fine-tuning.
TEST(Conversation, TurnsHaveTheFormatOfFineTuning) {
  const auto decoder = replies("\nok", 512);
  Held held(*decoder);
  const auto tokenizer = make_byte_tokenizer();
  const data::ConversationWriter writer(data::ConversationFormat::kAlpaca, *tokenizer);
  GenerateSettings settings = kGreedy;
  settings.stop_ids.clear();  // the writer has the id that ends an answer
  Conversation conversation(*decoder, *tokenizer, settings, &writer);
  const auto reply = conversation.say("one");
  EXPECT_EQ(reply.text, "ok");
  EXPECT_EQ(reply.reason, StopReason::kStopToken);
  using Messages = std::vector<data::Message>;
  const auto prompt = [&](const Messages& messages) {
    return static_cast<std::int64_t>(writer.prompt(messages).size());
  };
  EXPECT_EQ(held(), prompt({{"user", "one", {}}}) + 2);
  EXPECT_EQ(conversation.say("two").text, "ok");
  EXPECT_EQ(held(), prompt({{"user", "one", {}}, {"assistant", "ok", {}}, {"user", "two", {}}}) + 2);
  EXPECT_EQ(conversation.turns(), 2U);
  conversation.say("three");
  EXPECT_EQ(conversation.say("four").forgotten_turns, 0U);
  held();
  // 472 tokens fit, so the oldest of the five turns are dropped.
  EXPECT_GT(conversation.say(std::string(200, 'x')).forgotten_turns, 0U);
  EXPECT_LE(held(), 512);
  conversation.clear();
  EXPECT_EQ(conversation.turns(), 0U);
}

// A system message precedes all turns, and stays when turns are dropped.
TEST(Conversation, TheSystemTextStaysFirst) {
  const auto decoder = replies("\nok", 120);
  Held held(*decoder);
  const auto tokenizer = make_byte_tokenizer();
  const data::ConversationWriter writer(data::ConversationFormat::kAlpaca, *tokenizer);
  Conversation conversation(*decoder, *tokenizer, kGreedy, &writer, "Be brief.");
  using Messages = std::vector<data::Message>;
  const auto prompt = [&](const Messages& messages) {
    return static_cast<std::int64_t>(writer.prompt(messages).size());
  };
  EXPECT_EQ(conversation.say("one").text, "ok");
  EXPECT_EQ(held(), prompt({{"system", "Be brief.", {}}, {"user", "one", {}}}) + 2);
  EXPECT_EQ(conversation.turns(), 1U);
  EXPECT_GT(conversation.say("a question").forgotten_turns, 0U);
  EXPECT_EQ(held(), prompt({{"system", "Be brief.", {}}, {"user", "a question", {}}}) + 2);
  conversation.clear();
  conversation.say("one");
  EXPECT_EQ(held(), prompt({{"system", "Be brief.", {}}, {"user", "one", {}}}) + 2);
  // A format without a place for a system message is refused.
  const data::ConversationWriter squad(data::ConversationFormat::kSquad, *tokenizer);
  EXPECT_THROW(Conversation(*decoder, *tokenizer, kGreedy, &squad, "x"), Error);
  EXPECT_THROW(Conversation(*decoder, *tokenizer, kGreedy, nullptr, "x"), Error);
}

// The SQuAD format has one question and one answer, so each turn starts a new text.
TEST(Conversation, SingleTurnFormatsDropTheLastTurn) {
  const auto decoder = replies(": ok", 512);
  Held held(*decoder);
  const auto tokenizer = make_byte_tokenizer();
  const data::ConversationWriter writer(data::ConversationFormat::kSquad, *tokenizer);
  Conversation conversation(*decoder, *tokenizer, kGreedy, &writer);
  EXPECT_EQ(conversation.say("one").text, " ok");
  const std::int64_t length = held();
  EXPECT_EQ(conversation.say("two").text, " ok");
  EXPECT_EQ(held(), length);
}

// Short convolutions cannot return to the position where two prompts diverge. The second prompt is read from
// its start.
TEST(Conversation, SingleTurnFormatsRestartIfTheModelCannotDropTokens) {
  ModelConfig config = test::tiny_config();
  config.family = "lfm2";
  config.at(1).attention = &kShortConvolution;
  config.vocab = 288;
  config.max_positions = 512;
  const auto tokenizer = make_byte_tokenizer();
  const data::ConversationWriter writer(data::ConversationFormat::kSquad, *tokenizer);
  const auto decoder = random_decoder(test::cpu(), config, 3, {.capacity = 512}),
             fresh = random_decoder(test::cpu(), config, 3, {.capacity = 512});
  Conversation conversation(*decoder, *tokenizer, kGreedy, &writer);
  conversation.say("one");
  const std::string expected = Conversation(*fresh, *tokenizer, kGreedy, &writer).say("two").text;
  const std::int64_t before = decoder->counts().read;
  EXPECT_EQ(conversation.say("two").text, expected);
  EXPECT_EQ(decoder->counts().read - before, fresh->counts().read);
}

}  // namespace
}  // namespace primus
