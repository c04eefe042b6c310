// Tests prompts of reinforcement learning: records with and without messages, their tokens, and samples of
// groups.
#include "lm/data/prompt_dataset.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data_test_util.h"
#include "gzipped.h"
#include "lm/data/batch_loader.h"
#include "lm/data/prompt.h"
#include "lm/tokenizer/simple.h"
#include "tiny_tokenizers.h"

namespace primus::data {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

Prompt prompt_of(const std::string& text, Members members = Members::kText) {
  JsonReader json(text, "p.jsonl", {.python = true});
  Prompt prompt;
  read_prompt(json, prompt, members);
  json.finish();
  return prompt;
}

std::string prompt_refusal(const std::string& text) {
  return error_of([&] { prompt_of(text); });
}

// Writes the turns of a prompt as "role:text".
std::vector<std::string> prompt_turns(const std::string& text) {
  std::vector<std::string> all;
  for (const Message& message : prompt_of(text).conversation.messages)
    all.push_back(message.role + ":" + message.text + (message.context.empty() ? "" : "|" + message.context));
  return all;
}

TEST(PromptRecord, ReadsTextsAndMessages) {
  EXPECT_THAT(prompt_turns(R"({"prompt": "q"})"), ElementsAre("user:q"));
  EXPECT_THAT(prompt_turns(R"({"prompt": "q", "system": "S"})"), ElementsAre("system:S", "user:q"));
  EXPECT_THAT(prompt_turns(R"({"prompt": {"role": "user", "content": "q"}})"), ElementsAre("user:q"));
  EXPECT_THAT(
      prompt_turns(R"({"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}]})"),
      ElementsAre("system:S", "user:q"));
  EXPECT_THAT(prompt_turns(R"({"question": "q", "prompt": null})"), ElementsAre("user:q"));
  EXPECT_THAT(prompt_turns(R"({"instruction": "q", "input": "c", "history": [["a", "b"]]})"),
              ElementsAre("user:a", "assistant:b", "user:q|c"));
  // Quotes inside a text must not change the record.
  EXPECT_THAT(prompt_turns(R"({"prompt": "q\", \"answer\": \"", "system": "s\""})"),
              ElementsAre("system:s\"", R"(user:q", "answer": ")"));
}

TEST(PromptRecord, LeavesTheLastAnswerOfMessagesOut) {
  constexpr const char* kTurns =
      R"({{"messages": [{{"role": "user", "content": "q"}}, {{"role": "assistant", "content": "a"}}{}]}})";
  EXPECT_THAT(prompt_turns(fmt::format(kTurns, "")), ElementsAre("user:q"));
  EXPECT_THAT(prompt_turns(fmt::format(kTurns, R"(, {"role": "user", "content": "r"})")),
              ElementsAre("user:q", "assistant:a", "user:r"));
  EXPECT_THAT(
      prompt_turns(R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})"),
      ElementsAre("user:q"));
}

TEST(PromptRecord, KeepsFurtherKeysAsColumns) {
  EXPECT_THAT(prompt_of(R"({"prompt": "q", "answer": "7", "input": "x", "level": 3, "hint": null})").columns,
              testing::UnorderedElementsAre("answer", "input", "level"));
  EXPECT_THAT(prompt_of(R"({"question": "q", "context": "c", "answer": {"text": ["7"]}})").columns,
              ElementsAre("answer"));
  // If a record has both keys, "prompt" is read, and "question" is a column.
  EXPECT_THAT(prompt_of(R"({"question": 5, "prompt": "q"})").columns, ElementsAre("question"));
}

TEST(PromptRecord, RefusesWhatHasNoPrompt) {
  EXPECT_THAT(prompt_refusal("[]"), HasSubstr("p.jsonl:1:1"));
  EXPECT_THAT(prompt_refusal(R"({"answer": "7"})"), HasSubstr("no prompt"));
  EXPECT_THAT(prompt_refusal(R"({"prompt": 5})"),
              HasSubstr("must be a text, a message or a list of messages"));
  EXPECT_THAT(prompt_refusal(R"({"question": ["q"]})"), HasSubstr("must be a text"));
  EXPECT_THAT(prompt_refusal(R"({"messages": "q"})"), HasSubstr("must be a list of messages"));
  EXPECT_THAT(prompt_refusal(R"({"prompt": "q", "prompt": "r"})"), HasSubstr("'prompt' occurs twice"));
  EXPECT_THAT(prompt_refusal(R"({"prompt": " "})"), HasSubstr("the prompt is empty"));
  EXPECT_THAT(prompt_refusal(R"({"prompt": []})"), HasSubstr("no messages"));
  EXPECT_THAT(prompt_refusal(R"({"messages": [{"role": "assistant", "content": "a"}]})"), HasSubstr("empty"));
  EXPECT_THAT(prompt_refusal(
                  R"({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})"),
              AllOf(HasSubstr("the last message is an answer"), HasSubstr("'messages'")));
  EXPECT_THAT(prompt_refusal(R"({"prompt": "q", "images": ["x"]})"), HasSubstr("images"));
  EXPECT_THAT(prompt_refusal(R"({"prompt": "q", "tools": [{"name": "f"}]})"), HasSubstr("tools"));
}

class PromptData : public testing::Test {
 protected:
  PromptOptions options(const std::string& lines) const {
    return {.dataset = folder_.write("prompts.jsonl", lines),
            .shuffle = false,
            .seq_length = 16,
            .num_generations = 2,
            .max_prompt_length = 8};
  }
  Datasets open(const PromptOptions& options) const { return open_prompt_dataset(options, *bytes_); }
  static std::string text(const Dataset& data, std::int64_t index) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(data.seq_length()) + 1), starts;
    std::vector<float> mask(static_cast<std::size_t>(data.seq_length()), 1);
    data.sample(index, tokens, mask);
    EXPECT_THAT(mask, testing::Each(0));
    data.document_starts(index, starts);
    const auto end = starts.size() > 1 ? static_cast<std::size_t>(starts[1]) : mask.size();
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end)};
  }

  std::unique_ptr<const Tokenizer> bytes_ = make_byte_tokenizer();
  TemporaryFolder folder_;
};

constexpr const char* kSums = R"({"prompt": "3+4=", "answer": "7"}
{"prompt": "11+2=", "answer": "13", "level": 2}
)";

TEST_F(PromptData, EachPromptIsRepeatedForItsGroup) {
  const Datasets data = open(options(kSums));
  EXPECT_EQ(data.valid, nullptr);
  EXPECT_THAT(data.facts, AllOf(Contains(HasSubstr("written as none (the model has no chat template)")),
                                Contains(HasSubstr("2 prompts of up to 5 tokens, mean 4.5")),
                                Contains("columns for rewards: answer, level")));
  const Dataset& train = *data.train;
  for (std::int64_t i = 0; i < 8; ++i) EXPECT_EQ(text(train, i), i / 2 % 2 == 0 ? "3+4=" : "11+2=") << i;
  EXPECT_EQ(train.learned_tokens(0), 1);

  BatchLoader loader(train, {.micro_batch_size = 4, .prefetch = 0});
  const Batch& batch = loader.next();
  const auto prompt = DocumentRole::kPrompt, padding = DocumentRole::kNone;
  EXPECT_THAT(batch.document_roles,
              ElementsAre(prompt, padding, prompt, padding, prompt, padding, prompt, padding));
  EXPECT_THAT(batch.document_records, ElementsAre(0, -1, 0, -1, 1, -1, 1, -1));
  EXPECT_THAT(batch.document_starts, ElementsAre(0, 4, 16, 20, 32, 37, 48, 53, 64));

  const Prompts& prompts = *PromptDataset::of(train).prompts();
  EXPECT_EQ(prompts.prompt_text(1), "11+2=");
  EXPECT_THAT(prompts.prompt_ids(0), ElementsAre('3', '+', '4', '='));
  EXPECT_EQ(prompts.record(1), nlohmann::json::parse(R"({"prompt": "11+2=", "answer": "13", "level": 2})"));
  EXPECT_THAT(prompts.columns(), ElementsAre(Pair("answer", 2), Pair("level", 1)));
}

TEST_F(PromptData, TheOrderDependsOnSeedAndEpochOnly) {
  std::string lines;
  for (int i = 0; i < 50; ++i) lines += fmt::format("{{\"prompt\": \"{}\"}}\n", i);
  const auto order = [&](std::int64_t seed, std::int64_t group) {
    PromptOptions some = options(lines);
    some.shuffle = true;
    some.seed = seed;
    some.num_generations = group;
    const Datasets data = open(some);
    std::vector<std::string> texts;
    for (std::int64_t i = 0; i < 100; ++i) texts.push_back(text(*data.train, i * group));
    return texts;
  };
  const std::vector<std::string> first = order(1, 2);
  EXPECT_EQ(first, order(1, 5));
  EXPECT_NE(first, order(2, 2));
  EXPECT_FALSE(std::equal(first.begin(), first.begin() + 50, first.begin() + 50));
  for (const int epoch : {0, 50}) {
    std::vector<std::string> seen(first.begin() + epoch, first.begin() + epoch + 50);
    std::ranges::sort(seen);
    EXPECT_TRUE(std::ranges::adjacent_find(seen) == seen.end());
  }
}

TEST_F(PromptData, StepsThatUseAnswersAgainHaveTheSamePrompts) {
  std::string lines;
  for (const char letter : std::string("abcdefgh")) lines += fmt::format("{{\"prompt\": \"{}\"}}\n", letter);
  PromptOptions some = options(lines);
  some.step_samples = 4;
  some.num_iterations = 3;
  const Datasets data = open(some);
  std::string all;
  for (std::int64_t i = 0; i < 32; ++i) all += text(*data.train, i);
  EXPECT_EQ(all, "aabbaabbaabbccddccddccddeeffeeff");
  EXPECT_EQ(prompt_samples_of_epochs(some, *bytes_, 2).samples, 2 * 8 * 2 * 3);
}

TEST_F(PromptData, LongPromptsAreLeftOutAndCounted) {
  PromptOptions some = options(R"({"prompt": "123456789", "answer": "x"}
{"prompt": "12345678", "answer": "y"}
)");
  const Datasets data = open(some);
  EXPECT_THAT(data.notes, ElementsAre(AllOf(HasSubstr("left out 1 of 2 prompts: longer than 8 tokens"),
                                            EndsWith("the longest has 9"))));
  EXPECT_EQ(text(*data.train, 0), "12345678");
  EXPECT_EQ(PromptDataset::of(*data.train).prompts()->record(0)["answer"], "y");
  EXPECT_EQ(prompt_samples_of_epochs(some, *bytes_, 1.5).samples, 4);
  some.max_prompt_length = 7;
  EXPECT_THAT(error_of([&] { open(some); }), HasSubstr("left out 2 of 2 prompts: longer than 7 tokens"));
}

TEST_F(PromptData, BrokenRecordsAreErrorsOrAreCounted) {
  PromptOptions some = options(
      "{\"prompt\": \"q\", \"x\": 1}\n"
      "{\"answer\": \"a\"}\n"
      "{\"prompt\": \"q\", \"x\": NaN}\n"
      "not json\n"
      "{\"prompt\": \"r\", \"x\": 2}\n");
  EXPECT_THAT(error_of([&] { open(some); }), AllOf(HasSubstr("prompts.jsonl:2"), HasSubstr("--skip-bad")));
  some.skip_bad = true;
  const Datasets data = open(some);
  EXPECT_THAT(data.notes, Contains(AllOf(HasSubstr("skipped 3 of 5 records"), HasSubstr("prompts.jsonl:2"))));
  // Although records were skipped, each prompt has its own record.
  const Prompts& prompts = *PromptDataset::of(*data.train).prompts();
  ASSERT_EQ(prompts.size(), 2);
  EXPECT_EQ(prompts.record(1)["x"], 2);
  EXPECT_EQ(prompts.prompt_text(1), "r");
  some.dataset = folder_.write("empty.jsonl", "\n");
  EXPECT_THAT(error_of([&] { open(some); }), HasSubstr("is empty"));
}

TEST_F(PromptData, ReadsListsFoldersAndCompressedFiles) {
  PromptOptions some = options("");
  some.dataset = folder_.write("list.json", "[\n{\"prompt\": \"q\"},\n{\"prompt\": \"r\",\n\"a\": [1]}\n]\n");
  const Datasets list = open(some);
  EXPECT_EQ(PromptDataset::of(*list.train).prompts()->record(1)["a"][0], 1);
  some.dataset = folder_.write("packed.jsonl.gz", gzipped(kSums));
  EXPECT_EQ(text(*open(some).train, 2), "11+2=");
  std::filesystem::create_directory(folder_.path() / "split");
  folder_.write("split/train.jsonl", kSums);
  folder_.write("split/validation.jsonl", kSums);
  some.dataset = (folder_.path() / "split").string();
  EXPECT_THAT(open(some).facts, Contains(HasSubstr("validation and test are not read")));
}

TEST_F(PromptData, APlainPromptIsOneText) {
  PromptOptions some = options(R"({"prompt": "q", "system": "S"})");
  EXPECT_THAT(error_of([&] { open(some); }),
              AllOf(HasSubstr("prompts.jsonl:1"), HasSubstr("several messages"), HasSubstr("chatml")));
  some.format = "squad";
  some.dataset = folder_.write("prompts.jsonl", R"({"question": "q"})");
  some.max_prompt_length = some.seq_length = 64;
  const Datasets data = open(some);
  EXPECT_EQ(text(*data.train, 0), "Context:  Question: q Answer:");
}

TEST_F(PromptData, TheModelsTemplateWritesToolsAndTheBeginningOfTheAnswer) {
  tiny_tokenizer(folder_, {}, {"<eos>", "<|im_end|>"});
  folder_.write("tokenizer_config.json",
                nlohmann::json{{"eos_token", "<eos>"},
                               {"chat_template",
                                "{% if tools %}T{{ tools|length }} {% endif %}{% for m in messages %}"
                                "{{ m.role[0] }}:{{ m.content }}<|im_end|>{% endfor %}"
                                "{% if add_generation_prompt %}a:{% endif %}{{ strftime_now('%Y') }}"}}
                    .dump());
  const auto tokenizer = load_tokenizer("HuggingFaceTokenizer", folder_.path().string());
  PromptOptions some = options(R"({"prompt": "q", "tools": [{"name": "f"}], "answer": "7"})");
  some.max_prompt_length = some.seq_length = 64;
  const Datasets data = open_prompt_dataset(some, *tokenizer);
  const Prompts& prompts = *PromptDataset::of(*data.train).prompts();
  // The year is that of kTrainingDay, so that the data do not depend on the day of the run.
  EXPECT_EQ(prompts.prompt_text(0), "T1 u:q<|im_end|>a:2024");
  EXPECT_THAT(prompts.columns(), ElementsAre(Pair("answer", 1)));
  EXPECT_THAT(prompts.end_ids(),
              ElementsAre(*tokenizer->token_id("<|im_end|>"), *tokenizer->token_id("<eos>")));
  some.format = "none";
  EXPECT_THAT(error_of([&] { open_prompt_dataset(some, *tokenizer); }), HasSubstr("tools"));
}

// Without this check, the model would answer prompts without the tools.
TEST_F(PromptData, ToolsThatTheTemplateIgnoresAreRefused) {
  tiny_tokenizer(folder_, {}, {"<eos>", "<|im_end|>"});
  const nlohmann::json config{
      {"eos_token", "<eos>"},
      {"chat_template", "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"}};
  folder_.write("tokenizer_config.json", config.dump());
  const auto tokenizer = load_tokenizer("HuggingFaceTokenizer", folder_.path().string());
  PromptOptions some = options(R"({"prompt": "q"})");
  some.tools = R"([{"name": "f"}])";
  EXPECT_THAT(
      error_of([&] { open_prompt_dataset(some, *tokenizer); }),
      AllOf(HasSubstr("the tools of the key 'tools' cannot be offered"), HasSubstr("does not write")));
  some = options(R"({"prompt": "q", "tools": [{"name": "f"}]})");
  EXPECT_THAT(error_of([&] { open_prompt_dataset(some, *tokenizer); }),
              AllOf(HasSubstr(":1"), HasSubstr("the conversation has 'tools'")));
}

}  // namespace
}  // namespace primus::data
