#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "data_test_util.h"
#include "lm/data/conversation_files.h"
#include "lm/tokenizer/simple.h"
#include "tiny_tokenizers.h"

namespace primus::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Conversation conversation_of(const std::string& json) {
  Conversation conversation;
  JsonReader reader(json, "c.jsonl", {.python = true});
  read_conversation(reader, conversation);
  reader.finish();
  return conversation;
}

std::string refusal(const std::string& json) {
  return error_of([&] { conversation_of(json); });
}

// Returns the turns as "role: text", with a context in brackets.
std::vector<std::string> turns(const std::string& json) {
  std::vector<std::string> all;
  for (const Message& m : conversation_of(json).messages)
    all.push_back(m.role + ": " + m.text + (m.context.empty() ? "" : " [" + m.context + "]"));
  return all;
}

// Returns the text, with learned parts in braces and special tokens by name.
std::string marked(const Tokenizer& tokenizer, const LearnedTokens& tokens) {
  std::string text;
  bool open = false;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    if ((tokens.learned[i] != 0) != open) text += std::exchange(open, !open) ? "}" : "{";
    text += tokenizer.decode(std::span(tokens.ids).subspan(i, 1), false);
  }
  return text + (open ? "}" : "");
}

std::string written(ConversationFormat format, const Tokenizer& tokenizer, const std::string& json,
                    bool inline_bos = false) {
  LearnedTokens tokens;
  ConversationWriter(format, tokenizer, inline_bos).write(conversation_of(json), tokens);
  EXPECT_EQ(tokens.ids.size(), tokens.learned.size());
  return marked(tokenizer, tokens);
}

TEST(ConversationRecord, ReadsEverySchema) {
  EXPECT_THAT(turns(R"({"instruction": "Add", "input": "1 2", "output": "3"})"),
              ElementsAre("user: Add [1 2]", "assistant: 3"));
  EXPECT_THAT(turns(R"({"output": "3", "input": "", "instruction": "Add", "system": "Be brief", "x": [1]})"),
              ElementsAre("system: Be brief", "user: Add", "assistant: 3"));
  EXPECT_THAT(turns(R"({"id": "7", "question": "Who?", "context": "Me.", "answers": {"answer_start": [0],
                        "text": ["Me", "I"]}})"),
              ElementsAre("user: Who? [Me.]", "assistant: Me"));
  EXPECT_THAT(turns(R"({"question": "Who?", "answers": {"text": []}})"),
              ElementsAre("user: Who?", "assistant: "));
  EXPECT_THAT(turns(R"({"question": "Who?", "answers": ["Me", "I"]})"),
              ElementsAre("user: Who?", "assistant: Me"));
  EXPECT_THAT(turns(R"({"prompt": "Hi", "response": "Hello", "output": "not this"})"),
              ElementsAre("user: Hi", "assistant: Hello"));
  EXPECT_THAT(turns(R"({"input": "Hi", "output": "Hello"})"), ElementsAre("user: Hi", "assistant: Hello"));
  EXPECT_THAT(
      turns(R"({"messages": [{"role": "user", "content": "Hi"}, {"content": null, "role": "assistant"},
                        {"role": "tool", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}]})"),
      ElementsAre("user: Hi", "assistant: ", "tool: ab"));
  EXPECT_THAT(
      turns(R"({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}],
                        "system": "S"})"),
      ElementsAre("system: S", "user: Hi", "assistant: Hello"));
  EXPECT_THAT(turns(R"({"messages": null, "instruction": null, "question": "Hi", "answer": "Hello"})"),
              ElementsAre("user: Hi", "assistant: Hello"));

  const Conversation tokens =
      conversation_of(R"({"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1.0], "seq_start_id": [0, 2]})");
  EXPECT_THAT(tokens.messages, IsEmpty());
  EXPECT_THAT(tokens.ids, ElementsAre(5, 6, 7));
  EXPECT_THAT(tokens.learned, ElementsAre(0, 1, 1));
  EXPECT_THAT(tokens.starts, ElementsAre(0, 2));
  EXPECT_THAT(conversation_of(R"({"input_ids": [5, 6]})").learned, ElementsAre(1, 1));
  EXPECT_THAT(conversation_of(R"({"input_ids": [5, 6], "labels": [5, 6], "loss_mask": [0, 1]})").learned,
              ElementsAre(0, 1));
  EXPECT_THAT(turns(R"({"prompt": "Add", "completion": "3"})"), ElementsAre("user: Add", "assistant: 3"));
  // `history` has earlier turns, in LLaMA-Factory's form.
  EXPECT_THAT(turns(R"({"instruction": "c", "output": "d", "history": [["a", "b"]], "system": "S"})"),
              ElementsAre("system: S", "user: a", "assistant: b", "user: c", "assistant: d"));
  EXPECT_THAT(turns(R"({"instruction": "c", "output": "d", "history": []})"),
              ElementsAre("user: c", "assistant: d"));
}

TEST(ConversationRecord, AnswersMayBeExcludedFromTheLoss) {
  const auto learned = [](const std::string& of_answer) {
    return conversation_of(R"({"messages": [{"role": "user", "content": "a"},
                            {"role": "assistant", "content": "b", )" +
                           of_answer + "}]}")
        .messages.at(1)
        .learned;
  };
  for (const char* key : {"weight", "train", "loss", "trainable"}) {
    for (const auto& [value, expected] :
         {std::pair("0", false), {"1", true}, {"false", false}, {"true", true}, {"null", true}})
      EXPECT_EQ(learned(fmt::format(R"("{}": {})", key, value)), expected) << key << value;
  }
  EXPECT_THAT(refusal(R"({"messages": [{"role": "assistant", "content": "a", "train": true, "weight": 0}]})"),
              HasSubstr("contradict"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "assistant", "content": "a", "loss": "no"}]})"),
              HasSubstr("has loss \"no\"; it must be true or 1"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": "a", "train": true}]})"),
              HasSubstr("a 'user' message is marked as learned"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "assistant", "content": "a", "train": 0.5}]})"),
              HasSubstr("train 0.5"));
}

// A key that would change the text is refused unless its value is empty. Other unknown keys are listed.
TEST(ConversationRecord, MeaningfulKeysAreNeverIgnored) {
  const std::string question = R"({"messages": [{"role": "user", "content": "a"}, )";
  for (const char* key : {"tool_calls", "function_call", "reasoning_content", "reasoning", "thinking",
                          "images", "audio", "videos"}) {
    const auto with = [&](const char* value) {
      return fmt::format(R"({}{{"role": "assistant", "content": "b", "{}": {}}}]}})", question, key, value);
    };
    for (const char* none : {"null", "\"\"", "[]", "{}", "false"})
      EXPECT_THAT(conversation_of(with(none)).unused, IsEmpty()) << key << none;
    for (const char* value : {"\"x\"", "[\"x\"]", "{\"x\": 1}"}) {
      EXPECT_THAT(refusal(with(value)), AllOf(HasSubstr("c.jsonl:1:"), HasSubstr(key))) << value;
    }
  }
  for (const char* key :
       {"tools", "functions", "documents", "images", "videos", "audios", "chosen", "rejected"}) {
    const std::string record = fmt::format(R"({{"prompt": "a", "response": "b", "{}": ["x"]}})", key);
    EXPECT_THAT(refusal(record), AllOf(HasSubstr("c.jsonl:1:"), HasSubstr(key)));
  }
  EXPECT_THAT(refusal(R"({"instruction": "a", "output": "b", "history": [["x"]]})"),
              HasSubstr("must have two texts (question and answer), not 1"));
  EXPECT_THAT(refusal(R"({"history": [["x", "y"]], "messages": [{"role": "user", "content": "a"}]})"),
              HasSubstr("messages and history"));
  EXPECT_THAT(refusal(R"({"history": [["x", "y"]], "input_ids": [1]})"), HasSubstr("history and input_ids"));
  EXPECT_THAT(conversation_of(R"({"prompt": "a", "response": "b", "id": 7, "source": "x", "score": null,
                                  "text": "", "output": "another"})")
                  .unused,
              ElementsAre("id", "source", "output"));
  EXPECT_THAT(conversation_of(R"({"prompt": "a", "system": "T", "messages": [
                                  {"role": "system", "content": "S"},
                                  {"role": "user", "content": "a", "name": "Bob"}]})")
                  .unused,
              ElementsAre("messages.name", "system"));
  // loss_mask and seq_start_id refer to tokens, so only records with input_ids use these keys.
  EXPECT_THAT(
      conversation_of(R"({"prompt": "a", "response": "b", "loss_mask": [0], "seq_start_id": [0]})").unused,
      ElementsAre("loss_mask", "seq_start_id"));
}

// If a record has two contents, one is learned. The other content is reported, unless it equals a message.
TEST(ConversationRecord, NamesTheContentThatAnotherReplaces) {
  const std::string messages =
      R"("messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  const auto replaced = [](const std::string& record) { return conversation_of(record).replaced; };
  EXPECT_THAT(replaced("{\"prompt\": \"a\", \"completion\": \"b\", " + messages + "}"), IsEmpty());
  EXPECT_THAT(replaced("{" + messages + R"(, "prompt": "", "completion": null})"), IsEmpty());
  EXPECT_THAT(replaced("{\"instruction\": \"c\", " + messages + R"(, "output": "d"})"),
              ElementsAre("instruction", "output"));
  EXPECT_THAT(replaced(R"({"prompt": "c", "completion": "d", "input_ids": [1]})"),
              ElementsAre("prompt", "completion"));
}

TEST(ConversationRecord, RefusesDuplicateKeys) {
  EXPECT_THAT(refusal(R"({"prompt": "a", "response": "b", "prompt": "c"})"),
              AllOf(HasSubstr("c.jsonl:1:43: error: the key 'prompt' occurs twice in one object")));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": "a", "content": "b"}]})"),
              HasSubstr("the key 'content' occurs twice in one object"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": [{"text": "a", "text": "b"}]}]})"),
              HasSubstr("the key 'text' occurs twice in one object"));
  // Duplicate keys are also found in an object with many keys. Many keys are compared by another algorithm
  // than few keys.
  std::string many = R"({"prompt": "a", "response": "b")";
  for (int i = 0; i < 100; ++i) many += fmt::format(R"(, "k{}": 1)", i);
  EXPECT_NO_THROW(conversation_of(many + "}"));
  EXPECT_THAT(refusal(many + R"(, "k99": 1})"), HasSubstr("the key 'k99'"));
  EXPECT_THAT(refusal(many + R"(, "k0": 1})"), HasSubstr("the key 'k0'"));
}

TEST(ConversationRecord, RefusesOtherRecordsWithTheirLocation) {
  EXPECT_THAT(refusal("[1]"), HasSubstr("c.jsonl:1:1: error: a conversation is a list"));
  EXPECT_THAT(refusal(R"({"instruction": 5, "output": "x"})"), HasSubstr("c.jsonl:1:17"));
  EXPECT_THAT(refusal(R"({"instruction": "a", "output": ["x"]})"), HasSubstr("'output' is a list"));
  EXPECT_THAT(refusal(R"({"instruction": "a"})"), HasSubstr("has no answer"));
  EXPECT_THAT(refusal(R"({"instruction": "a", "ouput": "b"})"),
              AllOf(HasSubstr("; it has 'instruction', 'ouput'"), HasSubstr("may mean 'output'")));
  EXPECT_THAT(refusal(R"({"text": "a"})"),
              AllOf(HasSubstr("has no question"), HasSubstr("conversations,"), HasSubstr("input,"),
                    HasSubstr("; it has 'text'"), HasSubstr("primus train pretrain")));
  EXPECT_THAT(refusal(R"({"messages": "hello"})"), HasSubstr("'messages' is a string"));
  EXPECT_THAT(refusal(R"({"messages": []})"), HasSubstr("has no messages"));
  EXPECT_THAT(refusal(R"({"messages": [{"content": "a"}]})"), HasSubstr("a message has no role"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user"}]})"), HasSubstr("a message has no content"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": null}]})"),
              HasSubstr("the content of a 'user' message is null"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "asistant", "content": "a"}]})"),
              HasSubstr("did you mean 'assistant'?"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})"),
              HasSubstr("content of type 'image_url'"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}]})"),
              HasSubstr("tool calls"));
  EXPECT_THAT(refusal(R"({"input_ids": [1, -2]})"), HasSubstr("-2 is not a token id"));
  EXPECT_THAT(refusal(R"({"input_ids": [1, 2], "loss_mask": [1]})"), HasSubstr("loss_mask has 1 numbers"));
  EXPECT_THAT(refusal(R"({"input_ids": [1], "loss_mask": [0.5]})"),
              HasSubstr("0.5; it must be true or 1 (learned), or false or 0 (not learned)"));
  EXPECT_THAT(refusal(R"({"input_ids": [1, 2], "seq_start_id": [0, 2]})"), HasSubstr("seq_start_id"));
  EXPECT_THAT(refusal(R"({"input_ids": [1, 2], "seq_start_id": [1]})"), HasSubstr("seq_start_id"));
  EXPECT_THAT(refusal(R"({"input_ids": [], "seq_start_id": [0, 1]})"), HasSubstr("seq_start_id"));
  // Records are refused if their labels or weights exclude text that would be learned.
  EXPECT_THAT(refusal(R"({"input_ids": [1, 2], "labels": [-100, 2]})"),
              HasSubstr("'labels' is not supported"));
  EXPECT_THAT(refusal(R"({"completion_mask": [0, 1], "input_ids": [1, 2]})"), HasSubstr("loss_mask"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]})"),
              HasSubstr("weight 0.5"));
}

// TRL's form: prompt and completion may be lists of messages.
TEST(ConversationRecord, ReadsPromptsAndCompletionsThatAreMessages) {
  const std::string q = R"({"role": "user", "content": "q"})", a = R"({"role": "assistant", "content": "a"})";
  const auto expect_turn = [](const std::string& record) {
    EXPECT_THAT(turns(record), ElementsAre("user: q", "assistant: a"));
  };
  expect_turn(fmt::format(R"({{"prompt": [{}], "completion": [{}]}})", q, a));
  expect_turn(fmt::format(R"({{"completion": {}, "prompt": {}}})", a, q));
  expect_turn(fmt::format(R"({{"prompt": "q", "completion": [{}]}})", a));
  expect_turn(fmt::format(R"({{"prompt": [{}], "completion": "a"}})", q));
  const Conversation more = conversation_of(
      fmt::format(R"({{"system": "S", "prompt": [{0}, {1}, {0}], "completion": [{1}]}})", q, a));
  ASSERT_EQ(more.messages.size(), 5U);
  EXPECT_EQ(more.messages[0].text, "S");
  EXPECT_FALSE(more.messages[2].learned);  // an answer of the prompt
  EXPECT_TRUE(more.messages[4].learned);
  EXPECT_THAT(conversation_of(fmt::format(R"({{"prompt": [{0}], "messages": [{0}, {1}]}})", q, a)).replaced,
              ElementsAre("prompt"));
  EXPECT_THAT(refusal(fmt::format(R"({{"prompt": [{}]}})", q)), HasSubstr("has no answer"));
  EXPECT_THAT(refusal(fmt::format(R"({{"completion": [{}]}})", a)), HasSubstr("has no question"));
  EXPECT_THAT(refusal(R"({"prompt": [], "completion": "a"})"), HasSubstr("'prompt' has no messages"));
  EXPECT_THAT(refusal(fmt::format(R"({{"prompt": [{0}, {1}], "completion": [{1}]}})", q, a)),
              HasSubstr("the prompt ends with an answer"));
}

TEST(ConversationRecord, NullAnswersAndTextsAsMarksAreNamed) {
  EXPECT_THAT(
      refusal(R"({"prompt": "q", "response": null})"),
      HasSubstr("has no answer, which is the value of response, output, answer, completion or answers; "
                "null: 'response'"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "assistant", "content": "a", "train": "false"}]})"),
              HasSubstr("a message has train \"false\"; it must be true or 1 (learned)"));
}

TEST(ConversationRecord, OtherNamesOfRolesAreRead) {
  EXPECT_THAT(turns(R"({"messages": [{"role": "User", "content": "q"}, {"role": "bot", "content": "a"}]})"),
              ElementsAre("user: q", "assistant: a"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "chatgpt", "content": "a"}]})"),
              HasSubstr("observation, and human, gpt, bot and model"));
}

TEST(ConversationFormat, Alpaca) {
  const auto bytes = make_byte_tokenizer();
  const std::string preamble =
      "Below is an instruction that describes a task. Write a response that appropriately completes the "
      "request.\n\n";
  EXPECT_EQ(written(ConversationFormat::kAlpaca, *bytes, R"({"instruction": "Add", "output": "3"})"),
            preamble + "### Instruction:\nAdd\n\n### Response:\n{3<|endoftext|>}");
  EXPECT_EQ(written(ConversationFormat::kAlpaca, *bytes,
                    R"({"instruction": "Add", "input": "1 2", "output": "3", "system": "Be brief."})"),
            "Be brief.\n\n### Instruction:\nAdd\n\n### Input:\n1 2\n\n### Response:\n{3<|endoftext|>}");
  // Turns after the first one are written, too. Every answer is learned.
  EXPECT_EQ(written(ConversationFormat::kAlpaca, *bytes,
                    R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
                        {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
                        {"role": "assistant", "content": "d"}, {"role": "user", "content": "e"}]})"),
            "S\n\n### Instruction:\na\n\n### Response:\n{b<|endoftext|>}\n\n### Instruction:\nc\n\n"
            "### Response:\n{d<|endoftext|>}\n\n### Instruction:\ne\n\n");
  // A blank answer teaches nothing, not even the end token.
  EXPECT_EQ(written(ConversationFormat::kAlpaca, *bytes, R"({"instruction": "Add", "output": " \n"})"),
            preamble + "### Instruction:\nAdd\n\n### Response:\n \n<|endoftext|>");
}

TEST(ConversationFormat, Squad) {
  const auto bytes = make_byte_tokenizer();
  EXPECT_EQ(written(ConversationFormat::kSquad, *bytes,
                    R"({"question": " Who? ", "context": "Me.", "answers": {"text": ["Me "]}})"),
            "Context: Me. Question: Who? Answer:{ Me<|endoftext|>}");
  EXPECT_EQ(written(ConversationFormat::kSquad, *bytes, R"({"question": "Who?", "answers": {"text": []}})"),
            "Context:  Question: Who? Answer: <|endoftext|>");
  EXPECT_THAT(error_of([&] {
                written(ConversationFormat::kSquad, *bytes,
                        R"({"system": "S", "question": "Who?", "answer": "Me"})");
              }),
              HasSubstr("exactly one question"));
}

TEST(ConversationFormat, ChatMl) {
  const TemporaryFolder folder;
  const auto tokenizer = tiny_tokenizer(folder, {}, {"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  EXPECT_EQ(
      written(ConversationFormat::kChatMl, *tokenizer,
              R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
                        {"role": "assistant", "content": "b"}, {"role": "tool", "content": "c"},
                        {"role": "assistant", "content": "d"}]})"),
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{b<|im_end|>}\n"
      "<|im_start|>tool\nc<|im_end|>\n<|im_start|>assistant\n{d<|im_end|>}");
  EXPECT_EQ(written(ConversationFormat::kChatMl, *tokenizer,
                    R"({"instruction": "Add", "input": "1 2", "output": "3"})"),
            "<|im_start|>user\nAdd\n\n1 2<|im_end|>\n<|im_start|>assistant\n{3<|im_end|>}");
  // Each of the two turn marks is one token: 128 or 129. Lower ids belong to bytes.
  LearnedTokens tokens;
  ConversationWriter(ConversationFormat::kChatMl, *tokenizer)
      .write(conversation_of(R"({"prompt": "a", "response": "b"})"), tokens);
  EXPECT_THAT(tokens.ids, ElementsAre(128, 'u', 's', 'e', 'r', '\n', 'a', 129, '\n', 128, 'a', 's', 's', 'i',
                                      's', 't', 'a', 'n', 't', '\n', 'b', 129));
  EXPECT_THAT(tokens.learned, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1));

  EXPECT_THAT(error_of([&] { ConversationWriter(ConversationFormat::kChatMl, *make_byte_tokenizer()); }),
              HasSubstr("the special token <|im_start|>, which the tokenizer (ByteTokenizer) lacks"));
  const TemporaryFolder other;
  const auto half = tiny_tokenizer(other, {}, {"<|endoftext|>", "<|im_start|>"});
  EXPECT_THAT(error_of([&] { ConversationWriter(ConversationFormat::kChatMl, *half); }),
              HasSubstr("<|im_end|>"));
}

TEST(ConversationFormat, NamesEqualAmdPrimussNames) {
  EXPECT_EQ(conversation_format("alpaca"), ConversationFormat::kAlpaca);
  EXPECT_EQ(conversation_format("bridge_squad"), ConversationFormat::kSquad);
  EXPECT_EQ(conversation_format("openai"), ConversationFormat::kChatMl);
  EXPECT_EQ(conversation_format("messages"), ConversationFormat::kChatMl);
  EXPECT_EQ(conversation_format("llama"), std::nullopt);
  for (const char* name :
       {"llama3", "mistral", "gemma", "phi3", "phi4", "zephyr", "chatml", "alpaca", "squad"})
    EXPECT_EQ(name_of(*conversation_format(name)), name);
}

// In generation, the prompt ends where the answer starts. So in training, no token may cross that border. In
// a whole text, the tokenizer would merge "\n\n" or ": ". Characters of the answer, like " M", are merged as
// usual.
TEST(ConversationFormat, NoTokenSpansPromptAndAnswer) {
  const TemporaryFolder folder;
  const auto tokenizer =
      tiny_tokenizer(folder, {{"\n", "\n"}, {" ", "M"}, {":", " "}, {": ", "x"}}, {"<|endoftext|>"});
  const int32_t newlines = 127, space_m = 128, colon_space = 129;
  ASSERT_THAT(tokenizer->encode("\n\n", false), ElementsAre(newlines));
  LearnedTokens tokens;
  const ConversationWriter alpaca(ConversationFormat::kAlpaca, *tokenizer);
  alpaca.write(conversation_of(R"({"instruction": "a", "output": "\nb"})"), tokens);
  const size_t n = tokens.ids.size();
  EXPECT_THAT(std::vector(tokens.ids.begin() + static_cast<ptrdiff_t>(n) - 5, tokens.ids.end()),
              ElementsAre(':', '\n', '\n', 'b', 131));
  EXPECT_EQ(marked(*tokenizer, tokens).substr(marked(*tokenizer, tokens).find("###")),
            "### Instruction:\na\n\n### Response:\n{\nb<|endoftext|>}");

  const ConversationWriter squad(ConversationFormat::kSquad, *tokenizer);
  squad.write(conversation_of(R"({"question": "q", "context": "c", "answer": "Me"})"), tokens);
  EXPECT_THAT(std::vector(tokens.ids.end() - 4, tokens.ids.end()), ElementsAre(':', space_m, 'e', 131));
  squad.write(conversation_of(R"({"question": "q", "context": "c", "answer": "x"})"), tokens);
  EXPECT_THAT(std::vector(tokens.ids.end() - 4, tokens.ids.end()), ElementsAre(':', ' ', 'x', 131));
  EXPECT_THAT(tokenizer->encode(": z", false), ElementsAre(colon_space, 'z'));
  EXPECT_THAT(std::vector(tokens.learned.end() - 4, tokens.learned.end()), ElementsAre(0, 1, 1, 1));
}

// A tokenizer that puts a space before every text does so once per text, not before each answer.
TEST(ConversationFormat, TheTokenizersLeadingSpaceIsNotAddedToAnswers) {
  const TemporaryFolder folder;
  const auto tokenizer =
      tiny_tokenizer(folder, {{"\n", "\n"}}, {"</s>", "<|im_start|>", "<|im_end|>"}, /*sentencepiece=*/true);
  const ConversationWriter alpaca(ConversationFormat::kAlpaca, *tokenizer);
  LearnedTokens tokens;
  alpaca.write(conversation_of(R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "\nb"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})"),
               tokens);
  const auto text_of = [&](size_t begin, size_t end) {
    std::string text;
    for (size_t i = begin; i < end; ++i) text += tokenizer->token_text(tokens.ids[i]);
    return text;
  };
  const size_t first = static_cast<size_t>(std::ranges::find(tokens.learned, 1) - tokens.learned.begin());
  EXPECT_EQ(text_of(0, 6),
            "\xE2\x96\x81"
            "Below");
  EXPECT_EQ(text_of(first, first + 3), "\nb</s>");
  // After a special token, text is encoded like the start of a text, as in transformers.
  EXPECT_EQ(text_of(first + 3, first + 7),
            "\xE2\x96\x81"
            "\n\n##");
  EXPECT_EQ(text_of(tokens.ids.size() - 3, tokens.ids.size()), "\nd</s>");
}

// With inline_bos, every text is tokenized separately and starts with the token that starts a text, as in
// Megatron Bridge's packing.
TEST(ConversationFormat, InlineBos) {
  const TemporaryFolder folder;
  const auto tokenizer = tiny_tokenizer(folder, {}, {"</s>"}, /*sentencepiece=*/true);
  LearnedTokens tokens;
  ConversationWriter(ConversationFormat::kSquad, *tokenizer, true)
      .write(conversation_of(R"({"question": "q", "context": "c", "answer": "Me"})"), tokens);
  const std::vector<int32_t> answer = tokenizer->encode(" Me", true);
  std::vector<int32_t> expected = tokenizer->encode("Context: c Question: q Answer:", true);
  const size_t prompt = expected.size();
  expected.insert(expected.end(), answer.begin(), answer.end());
  expected.push_back(*tokenizer->special_ids().eos);
  EXPECT_EQ(tokens.ids, expected);
  EXPECT_EQ(static_cast<size_t>(std::ranges::find(tokens.learned, 1) - tokens.learned.begin()), prompt);
}

TEST(ConversationFormat, ThePromptIsAPrefixOfTheTrainedText) {
  const auto bytes = make_byte_tokenizer();
  const ConversationWriter writer(ConversationFormat::kAlpaca, *bytes);
  LearnedTokens tokens;
  const Conversation whole = conversation_of(R"({"instruction": "Add", "input": "1 2", "output": "3"})");
  writer.write(whole, tokens);
  const std::vector<int32_t> prompt = writer.prompt({whole.messages[0]});
  ASSERT_EQ(prompt.size() + 2, tokens.ids.size());
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), tokens.ids.begin()));
  EXPECT_EQ(writer.end_id(), tokens.ids.back());
}

class ConversationFiles : public testing::Test {
 protected:
  TokenizedConversations read(const std::string& path, int workers = 2) const {
    return read_conversations(find_conversations(path).train, writer_,
                              {.vocab_size = bytes_->vocab_size(), .workers = workers});
  }
  std::unique_ptr<const Tokenizer> bytes_ = make_byte_tokenizer();
  ConversationWriter writer_{ConversationFormat::kSquad, *bytes_};
  TemporaryFolder folder_;
};

TEST_F(ConversationFiles, JsonLinesAndListsAreEqual) {
  std::string lines, list = "\xEF\xBB\xBF [\n";
  for (int i = 0; i < 500; ++i) {
    const std::string one = R"({"question": "q)" + std::to_string(i) + R"(", "answer": "a"})";
    lines += one + "\n\n";
    list += (i > 0 ? ",\n " : " ") + one;
  }
  const TokenizedConversations a = read(folder_.write("a.jsonl", lines));
  const TokenizedConversations b = read(folder_.write("b.json", list + "\n]\n"), 1);
  EXPECT_EQ(a.read, 500);
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.learned, b.learned);
  EXPECT_EQ(a.ends, b.ends);
  // The list may also be on one line.
  std::erase(list, '\n');
  EXPECT_EQ(read(folder_.write("c.json", list + "]")).ids, a.ids);
}

TEST_F(ConversationFiles, MistakesAreReportedWithTheirLine) {
  const std::string good = R"({"question": "q", "answer": "a"})";
  EXPECT_THAT(
      error_of([&] { read(folder_.write("a.jsonl", good + "\n" + good + "\n{\"question\": \"q\"}\n")); }),
      HasSubstr("a.jsonl:3:"));
  EXPECT_THAT(error_of([&] { read(folder_.write("b.jsonl", good + "\n{\"question\": \n")); }),
              HasSubstr("b.jsonl:2:"));
  EXPECT_THAT(
      error_of([&] { read(folder_.write("c.json", "[" + good + ",\n\n" + good + ",\n{\"a\": 1}]")); }),
      HasSubstr("c.json:4:"));
  EXPECT_THAT(error_of([&] { read(folder_.write("d.json", "[" + good + ",\n 7]")); }),
              HasSubstr("d.json:2:"));
  EXPECT_THAT(error_of([&] {
                read(folder_.write("e.jsonl", good + "\n{\"question\": \"\xFF\", \"answer\": \"a\"}\n"));
              }),
              HasSubstr("e.jsonl:2"));
  EXPECT_THAT(error_of([&] { read(folder_.write("i.json", "{\n" + good.substr(1))); }),
              AllOf(HasSubstr("i.json:1"), HasSubstr("jq -c .")));
  // Text that the format cannot express, and tokens of another vocabulary, are refused.
  EXPECT_THAT(
      error_of([&] {
        read(folder_.write("f.jsonl", good + "\n" + R"({"system": "S", "question": "q", "answer": "a"})"));
      }),
      HasSubstr("f.jsonl:2: error: the format squad"));
  EXPECT_THAT(error_of([&] { read(folder_.write("g.jsonl", "{\"input_ids\": [1, 257]}")); }),
              HasSubstr("g.jsonl:1: error: token 257"));
  // With several errors the first one is reported, for any number of readers.
  std::string many;
  for (int i = 0; i < 300; ++i) many += i == 100 || i == 270 ? "{\"question\": \"q\"}\n" : good + "\n";
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(error_of([&] { read(folder_.write("h.jsonl", many), 4); }), HasSubstr("h.jsonl:101:"));
}

TEST_F(ConversationFiles, BrokenRecordsMayBeSkipped) {
  const std::string good = R"({"question": "q", "answer": "a", "id": 1})"
                           "\n";
  const std::string path = folder_.write("a.jsonl", good + "{broken\n" +
                                                        R"({"question": "q", "answer": "a", "tools": [1]})"
                                                        "\n" +
                                                        good);
  const auto files = find_conversations(path).train;
  ReadOptions options{.vocab_size = bytes_->vocab_size(), .workers = 2, .skip_bad = true};
  const TokenizedConversations read = read_conversations(files, writer_, options);
  EXPECT_EQ(read.size(), 2U);
  EXPECT_EQ(read.read, 4);
  EXPECT_EQ(read.skipped, 2);
  EXPECT_EQ(read.unused.at("id"), 2);
  EXPECT_THAT(note_on_skipped(read, "a.jsonl"),
              AllOf(HasSubstr("skipped 2 of 4 records"), HasSubstr("a.jsonl:2:")));
  EXPECT_THAT(note_on_unused(read, "a.jsonl"), HasSubstr("id (2)"));
  options.skip_bad = false;
  EXPECT_THAT(error_of([&] { read_conversations(files, writer_, options); }),
              AllOf(HasSubstr("a.jsonl:2:"), HasSubstr("--skip-bad")));
  // Skipping all records is an error, because nothing can be learned.
  options.skip_bad = true;
  EXPECT_THAT(error_of([&] {
                read_conversations(find_conversations(folder_.write("b.jsonl", "{}\n[]\n")).train, writer_,
                                   options);
              }),
              HasSubstr("none of 2 records is a conversation; the first: "));
}

TEST_F(ConversationFiles, CountsReplacedContentsAndUnansweredQuestions) {
  const std::string both =
      R"({"prompt": "c", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
      "\n";
  const std::string open =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},)"
      R"( {"role": "user", "content": "more"}]})"
      "\n";
  const std::string path = folder_.write("n.jsonl", open + both + both + open);
  const ConversationWriter chatml(ConversationFormat::kAlpaca, *bytes_, false);
  const TokenizedConversations read = read_conversations(find_conversations(path).train, chatml,
                                                         {.vocab_size = bytes_->vocab_size(), .workers = 2});
  EXPECT_THAT(
      notes_on_content(read, "n.jsonl"),
      ElementsAre(AllOf(HasSubstr("'prompt' (2 records) next to messages"), HasSubstr("n.jsonl:2)")),
                  AllOf(HasSubstr("2 of 4 conversations end without an answer"), HasSubstr("n.jsonl:1)"))));
  // The last question has no loss.
  EXPECT_EQ(read.learned.back(), 0);
}

TEST_F(ConversationFiles, AHugeLineIsRefusedBeforeItIsRead) {
  std::string huge = R"({"question": ")";
  huge.append(BlockReader::kMaxLineBytes + 1, 'x');
  EXPECT_THAT(error_of([&] { read(folder_.write("huge.jsonl", huge + R"(", "answer": "a"})")); }),
              HasSubstr("huge.jsonl:1"));
}

TEST_F(ConversationFiles, BackupCopiesAreNotRead) {
  for (const char* name : {"d/train.jsonl", "d/train.jsonl.bak", "d/train.jsonl~", "d/train-2.jsonl.old",
                           "d/validation.jsonl", "d/validation.jsonl.orig"})
    folder_.write(name, "{}\n");
  const auto files = find_conversations((folder_ / "d").string());
  EXPECT_EQ(files.train.size(), 1U);
  EXPECT_EQ(files.valid.size(), 1U);
}

TEST_F(ConversationFiles, FoldersContainSplits) {
  folder_.write("d/train-00000-of-00002.jsonl", "");
  folder_.write("d/train-00001-of-00002.jsonl", "");
  folder_.write("d/validation.json", "");
  folder_.write("d/test.jsonl.zst", "");
  folder_.write("d/trainer.jsonl", "");
  folder_.write("d/README.md", "");
  const auto files = find_conversations((folder_ / "d").string());
  EXPECT_EQ(files.train.size(), 2U);
  EXPECT_EQ(files.valid.size(), 1U);
  EXPECT_EQ(files.test.size(), 1U);
  EXPECT_TRUE(files.divided);
  folder_.write("e/tool.jsonl", "");
  EXPECT_THAT(error_of([&] { find_conversations((folder_ / "e").string()); }),
              AllOf(HasSubstr("begins with 'train'; it has tool.jsonl"), HasSubstr("sft_dataset_split")));
  EXPECT_EQ(find_conversations((folder_ / "e").string(), "tool").train.size(), 1U);
}

TEST_F(ConversationFiles, MissingNumberedFilesAreNoted) {
  folder_.write("d/train-00000-of-00003.jsonl", "");
  folder_.write("d/train-00002-of-00003.jsonl", "");
  folder_.write("d/test-00000-of-00001.jsonl", "");
  const std::string name = (folder_ / "d").string();
  EXPECT_EQ(note_on_other_files(find_conversations(name), name),
            name + ": 2 of 3 files 'train-*-of-00003' exist");
  folder_.write("d/train-00001-of-00003.jsonl", "");
  EXPECT_EQ(note_on_other_files(find_conversations(name), name), "");
  folder_.write("d/more-of-it.jsonl", "");
  EXPECT_THAT(note_on_other_files(find_conversations(name), name), HasSubstr(": not read, because"));
}

TEST_F(ConversationFiles, HubNamesGetAHint) {
  EXPECT_THAT(error_of([] { find_conversations("tatsu-lab/alpaca"); }),
              AllOf(HasSubstr("Primus does not download"), HasSubstr("load_dataset('tatsu-lab/alpaca'")));
  EXPECT_THAT(error_of([] { find_conversations("no/such/file.jsonl"); }), HasSubstr("paths are relative to"));
  EXPECT_THAT(
      error_of([&] { find_conversations(folder_.write("chats.csv", "instruction,output\nq,a\n")); }),
      AllOf(HasSubstr("is a table (.csv)"), HasSubstr("csv.DictReader(open("), HasSubstr("chats.jsonl")));
  // The command must not replace a file.
  folder_.write("chats.jsonl", "");
  EXPECT_THAT(error_of([&] { find_conversations((folder_ / "chats.csv").string()); }),
              HasSubstr("chats-1.jsonl"));
  folder_.write("hub/data/train-00000-of-00001.parquet", "PAR1");
  EXPECT_THAT(error_of([&] { find_conversations((folder_ / "hub").string()); }),
              AllOf(HasSubstr("has Parquet files ('data/train-00000-of-00001.parquet')"),
                    HasSubstr("['train'].to_json('train.jsonl')")));
  folder_.write("saved/data-00000-of-00001.arrow", "x");
  EXPECT_THAT(error_of([&] { find_conversations((folder_ / "saved").string()); }),
              AllOf(HasSubstr("has Arrow files"), HasSubstr("load_from_disk(")));
  folder_.write("m/train.npy", "x");
  folder_.write("m/packed_metadata.jsonl", "[]");
  EXPECT_THAT(error_of([&] { find_conversations((folder_ / "m").string()); }),
              AllOf(HasSubstr("pickled Python object"), HasSubstr("seq_start_id")));
  EXPECT_THAT(error_of([&] { find_conversations(folder_.write("t.txt", "hello")); }),
              HasSubstr("conversations must be JSON lines"));
}

}  // namespace
}  // namespace primus::data
