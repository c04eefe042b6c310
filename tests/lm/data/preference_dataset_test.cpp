// Tests preference data: records of pairs and of labelled answers, their tokens, and samples with roles.
#include "lm/data/preference_dataset.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "data_test_util.h"
#include "lm/data/batch_loader.h"
#include "lm/tokenizer/simple.h"

namespace primus::data {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Preference record_of(const std::string& text, PreferenceKind kind = PreferenceKind::kPairs) {
  JsonReader json(text, "p.jsonl", {.python = true});
  Preference record;
  read_preference(json, kind, record);
  json.finish();
  return record;
}

std::string refusal(const std::string& text, PreferenceKind kind = PreferenceKind::kPairs) {
  return error_of([&] { record_of(text, kind); });
}

// Writes the turns of a text as "role:text", with an asterisk after learned answers.
std::vector<std::string> turns(const Preference::Text& text) {
  std::vector<std::string> all;
  for (const Message& message : text.conversation.messages) {
    const bool learned = message.role == kAssistant && message.learned;
    all.push_back(message.role + ":" + message.text + (learned ? "*" : ""));
  }
  return all;
}

void expect_pair(const std::string& text, const std::vector<std::string>& chosen,
                 const std::vector<std::string>& rejected) {
  SCOPED_TRACE(text);
  const Preference record = record_of(text);
  ASSERT_THAT(record.texts, SizeIs(2));
  EXPECT_TRUE(record.texts[0].preferred);
  EXPECT_FALSE(record.texts[1].preferred);
  EXPECT_EQ(turns(record.texts[0]), chosen);
  EXPECT_EQ(turns(record.texts[1]), rejected);
}

TEST(PreferenceRecord, ReadsTextsAndMessages) {
  const std::vector<std::string> chosen = {"user:q", "assistant:a*"}, rejected = {"user:q", "assistant:b*"};
  expect_pair(R"({"prompt": "q", "chosen": "a", "rejected": "b"})", chosen, rejected);
  expect_pair(R"({"question": "q", "chosen": "a", "rejected": "b", "prompt": null})", chosen, rejected);
  const std::string a = R"({"role": "assistant", "content": "a"})", b = R"({"from": "gpt", "value": "b"})",
                    q = R"({"role": "user", "content": "q"})", q2 = R"({"content":"q", "role":"user"})";
  expect_pair(fmt::format(R"({{"prompt": [{}], "chosen": [{}], "rejected": {}}})", q, a, b), chosen,
              rejected);
  // The prompt is the common beginning, whatever the order of keys.
  expect_pair(fmt::format(R"({{"chosen": [{}, {}], "rejected": [{}, {}]}})", q, a, q2, b), chosen, rejected);
  expect_pair(fmt::format(R"({{"prompt": "q", "chosen": [{}, {}], "rejected": [{}, {}]}})", q, a, q, b),
              chosen, rejected);
  expect_pair(fmt::format(R"({{"prompt": [{0}], "chosen": [{0}, {1}], "rejected": [{0}, {2}]}})", q, a, b),
              chosen, rejected);
  // An earlier answer belongs to the prompt, and is not learned.
  expect_pair(
      fmt::format(R"({{"system": "S", "chosen": [{0}, {1}, {0}, {1}], "rejected": [{0}, {1}, {0}, {2}]}})", q,
                  a, b),
      {"system:S", "user:q", "assistant:a", "user:q", "assistant:a*"},
      {"system:S", "user:q", "assistant:a", "user:q", "assistant:b*"});
}

// Without the context, the question would be another one.
TEST(PreferenceRecord, TheContextOfAQuestionIsRead) {
  for (const auto& [record, context] :
       {std::pair(R"({"instruction": "q", "input": "c", "chosen": "a", "rejected": "b"})", "c"),
        std::pair(
            R"({"prompt": [{"role": "user", "content": "q"}], "input": "c", "chosen": "a", "rejected": "b"})",
            "")}) {
    const Preference pair = record_of(record);
    for (const Preference::Text& text : pair.texts)
      EXPECT_EQ(text.conversation.messages.front().context, context) << record;
    EXPECT_EQ(pair.unused.empty(), context[0] != 0) << record;
  }
}

TEST(PreferenceRecord, APromptThatEndsWithAnAnswerIsRefused) {
  const std::string prompt =
      R"({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "p"}], )";
  EXPECT_THAT(refusal(prompt + R"("chosen": "a", "rejected": "b"})"),
              HasSubstr("the prompt ends with an answer, and another answer follows"));
  EXPECT_THAT(refusal(prompt + R"("completion": "a", "label": true})", PreferenceKind::kLabelled),
              HasSubstr("the prompt ends with an answer"));
}

// As in TRL, a blank before the first difference belongs to the answers.
TEST(PreferenceRecord, SplitsTextsAtTheirFirstDifference) {
  expect_pair(R"({"chosen": "Name a prime. 7", "rejected": "Name a prime. 8"})",
              {"user:Name a prime.", "assistant: 7*"}, {"user:Name a prime.", "assistant: 8*"});
  expect_pair(R"({"chosen": "xé", "rejected": "xè"})", {"user:x", "assistant:é*"},
              {"user:x", "assistant:è*"});
  expect_pair(R"({"chosen": "abc", "rejected": "abcd"})", {"user:ab", "assistant:c*"},
              {"user:ab", "assistant:cd*"});
  EXPECT_THAT(refusal(R"({"chosen": "7", "rejected": "8"})"), HasSubstr("no common beginning"));
}

TEST(PreferenceRecord, ReadsLabels) {
  const auto kind = PreferenceKind::kLabelled;
  const Preference good = record_of(R"({"prompt": "q", "completion": "a", "label": true})", kind);
  ASSERT_THAT(good.texts, SizeIs(1));
  EXPECT_TRUE(good.texts[0].preferred);
  EXPECT_THAT(turns(good.texts[0]), ElementsAre("user:q", "assistant:a*"));
  EXPECT_FALSE(record_of(R"({"prompt": "q", "completion": "a", "label": 0})", kind).texts[0].preferred);
  EXPECT_THAT(record_of(R"({"prompt": "q", "chosen": "a", "rejected": "b"})", kind).texts, SizeIs(2));
  EXPECT_THAT(refusal(R"({"prompt": "q", "completion": "a", "label": 0.5})", kind),
              HasSubstr("label is 0.5"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "completion": "a", "label": "true"})", kind),
              HasSubstr("label is \"true\"; it must be true or 1 (good), or false or 0 (bad)"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "completion": "a", "label": null})", kind),
              HasSubstr("for a bad one; null: 'label'"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "completion": null, "label": true})", kind),
              HasSubstr("null: 'completion'"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "completion": "a"})", kind), HasSubstr("no label"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "label": true})", kind), HasSubstr("no answer"));
  EXPECT_THAT(refusal(R"({"completion": "a", "label": true})", kind), HasSubstr("no prompt"));
}

TEST(PreferenceRecord, ReadsTheMarginAndListsOtherKeys) {
  const Preference record =
      record_of(R"({"prompt": "q", "chosen": "a", "rejected": "b", "margin": 1.5, "id": 3, "score": null})");
  EXPECT_EQ(record.margin, 1.5F);
  EXPECT_THAT(record.unused, ElementsAre("id", "margin"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "chosen": "a", "rejected": "b", "margin": 1e39})"),
              HasSubstr("margin"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "chosen": "a", "rejected": "b", "margin": NaN})"),
              HasSubstr("margin"));
}

TEST(PreferenceRecord, RefusesWhatIsNoPair) {
  EXPECT_THAT(refusal("[]"), HasSubstr("p.jsonl:1:1"));
  EXPECT_THAT(refusal("{}"), AllOf(HasSubstr("no key 'chosen'"), HasSubstr("it has none")));
  EXPECT_THAT(refusal(R"({"prompt": "q", "choosen": "a", "rejected": "b"})"),
              AllOf(HasSubstr("it has 'prompt', 'choosen', 'rejected'"), HasSubstr("may mean 'chosen'")));
  EXPECT_THAT(refusal(R"({"prompt": "q", "response_j": "a", "response_k": "b"})"),
              AllOf(HasSubstr("'response_j', 'response_k'"), HasSubstr("rename the keys")));
  EXPECT_THAT(refusal(R"({"instruction": "q", "output": "a"})"), HasSubstr("primus train posttrain"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "chosen": "a"})"), HasSubstr("no key 'rejected'"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "chosen": "a", "rejected": null})"),
              HasSubstr("the value of 'rejected' is null"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "completion": "a", "label": true})"), HasSubstr("primus train kto"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "chosen": 5, "rejected": "b"})"), HasSubstr("'chosen' is a number"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "chosen": [], "rejected": "b"})"),
              HasSubstr("'chosen' has no messages"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "chosen": "a", "rejected": "b", "prompt": "r"})"),
              HasSubstr("'prompt' occurs twice"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "chosen": ["a"], "rejected": "b"})"), HasSubstr("'chosen': "));
  EXPECT_THAT(refusal(R"({"chosen": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "a"}],
                          "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]})"),
              HasSubstr("different messages"));
  EXPECT_THAT(refusal(R"({"prompt": "q", "chosen": "a", "rejected": "b", "images": ["x"]})"),
              HasSubstr("images"));
}

// Quotes and brackets inside a text must not change the record.
TEST(PreferenceRecord, TextsStayTexts) {
  const Preference record = record_of(
      R"({"prompt": "q\"}], \"x\": [{\"a\": \"", "chosen": "a\\", "rejected": "\u0022]}", "system": "s\""})");
  EXPECT_THAT(turns(record.texts[0]),
              ElementsAre("system:s\"", R"(user:q"}], "x": [{"a": ")", "assistant:a\\*"));
  EXPECT_THAT(turns(record.texts[1]).back(), "assistant:\"]}*");
  // Nesting is limited as in every record.
  const std::string deep = std::string(5000, '[') + std::string(5000, ']');
  EXPECT_THAT(refusal(fmt::format(R"({{"prompt": {}, "chosen": "a", "rejected": "b"}})", deep)),
              HasSubstr("p.jsonl:1:"));
}

class PreferenceData : public testing::Test {
 protected:
  SftOptions options(const std::string& lines, std::int64_t seq_length) const {
    return {.dataset = folder_.write("pairs.jsonl", lines),
            .format = "squad",
            .pack = true,
            .separate = true,
            .shuffle = false,
            .seq_length = seq_length,
            .train_samples = 1};
  }
  Datasets open(const SftOptions& options, PreferenceKind kind = PreferenceKind::kPairs) const {
    return open_preference_datasets(options, kind, *bytes_);
  }
  struct Row {
    std::vector<std::int32_t> tokens, starts;
    std::vector<float> mask, values;
    std::vector<DocumentRole> roles;
  };
  static Row row(const Dataset& data, std::int64_t draw) {
    Row row;
    row.tokens.resize(static_cast<std::size_t>(data.seq_length()) + 1);
    row.mask.resize(static_cast<std::size_t>(data.seq_length()));
    data.sample(draw, row.tokens, row.mask);
    data.document_starts(draw, row.starts);
    data.document_marks(draw, row.roles, row.values);
    return row;
  }
  // Returns the text of document `i` of a row, without the tokens that are not bytes.
  static std::string text(const Row& row, std::size_t i) {
    const std::size_t end =
        i + 1 < row.starts.size() ? static_cast<std::size_t>(row.starts[i + 1]) : row.tokens.size();
    std::string text;
    for (auto t = static_cast<std::size_t>(row.starts[i]); t < end; ++t) {
      if (row.tokens[t] < 256) text += static_cast<char>(row.tokens[t]);
    }
    return text;
  }
  // Returns the labels of document `i` that are learned, as text; the end token is '$'.
  static std::string learned(const Row& row, std::size_t i) {
    const std::size_t end =
        i + 1 < row.starts.size() ? static_cast<std::size_t>(row.starts[i + 1]) : row.mask.size();
    std::string text;
    for (auto t = static_cast<std::size_t>(row.starts[i]); t < end; ++t) {
      if (row.mask[t] == 0) continue;
      text += row.tokens[t + 1] < 256 ? static_cast<char>(row.tokens[t + 1]) : '$';
    }
    return text;
  }

  std::unique_ptr<const Tokenizer> bytes_ = make_byte_tokenizer();
  TemporaryFolder folder_;
};

TEST_F(PreferenceData, PairsAreTwoDocumentsOfARow) {
  const Datasets data = open(options(R"({"prompt": "q", "chosen": "aaa", "rejected": "b", "margin": 2}
{"prompt": "r", "chosen": "c", "rejected": "dd"}
)",
                                     200));
  const Dataset& train = *data.train;
  EXPECT_TRUE(train.separates_documents());
  const Row first = row(train, 0);
  EXPECT_THAT(first.roles, ElementsAre(DocumentRole::kChosen, DocumentRole::kRejected, DocumentRole::kChosen,
                                       DocumentRole::kRejected, DocumentRole::kNone));
  EXPECT_THAT(first.values, ElementsAre(2, 2, 0, 0, 0));
  ASSERT_THAT(first.starts, SizeIs(5));
  EXPECT_EQ(text(first, 0), "Context:  Question: q Answer: aaa");
  EXPECT_EQ(text(first, 1), "Context:  Question: q Answer: b");
  EXPECT_EQ(learned(first, 0), " aaa$");
  EXPECT_EQ(learned(first, 1), " b$");
  EXPECT_EQ(learned(first, 3), " dd$");
  EXPECT_EQ(learned(first, 4), "");
  EXPECT_EQ(train.learned_tokens(0), 2);  // pairs
  EXPECT_THAT(data.facts, Contains(HasSubstr("2 pairs packed into 1 sequence,")));

  BatchLoader loader(train, {.micro_batch_size = 2, .prefetch = 0, .samples_per_mean = 4});
  const Batch& batch = loader.next();
  EXPECT_THAT(batch.document_roles, SizeIs(10));
  EXPECT_THAT(batch.document_values, SizeIs(10));
  EXPECT_THAT(batch.document_starts, SizeIs(11));
  EXPECT_EQ(batch.loss_divisor, 4);  // 8 pairs in the two microbatches of a step
}

TEST_F(PreferenceData, TruncatesBothTextsAndLeavesOutWhatCannotBeLearned) {
  const std::string long_answer(100, 'a');
  const Datasets data = open(options(fmt::format(R"({{"prompt": "q", "chosen": "{}", "rejected": "b"}}
{{"prompt": "{}", "chosen": "c", "rejected": "d"}}
{{"prompt": "q", "chosen": "same", "rejected": "same"}}
)",
                                                 long_answer, long_answer),
                                     99));
  const Row only = row(*data.train, 0);
  EXPECT_EQ(text(only, 1), "Context:  Question: q Answer: b");
  EXPECT_EQ(only.starts[1], 100 - 32);  // the rejected text has 31 bytes and an end token
  EXPECT_EQ(learned(only, 1), " b$");
  EXPECT_THAT(data.notes,
              AllOf(Contains(HasSubstr("truncated 1 of 3 pairs: longer than seq_length (99)")),
                    Contains(HasSubstr("skipped 1 of 3 pairs: an answer without tokens within seq_length")),
                    Contains(HasSubstr("skipped 1 of 3 pairs: two equal answers or an empty answer"))));
  EXPECT_EQ(data.train->learned_tokens(0), 1);
}

TEST_F(PreferenceData, LabelledAnswersHaveAMismatchedText) {
  const Datasets data = open(options(R"({"prompt": "q", "completion": "a", "label": true}
{"prompt": "r", "completion": "b", "label": false}
{"prompt": "r", "completion": "c", "label": true}
)",
                                     300),
                             PreferenceKind::kLabelled);
  const Row only = row(*data.train, 0);
  EXPECT_THAT(only.roles, ElementsAre(DocumentRole::kChosen, DocumentRole::kMismatched,
                                      DocumentRole::kRejected, DocumentRole::kMismatched,
                                      DocumentRole::kChosen, DocumentRole::kMismatched, DocumentRole::kNone));
  EXPECT_EQ(text(only, 1), "Context:  Question: q Answer: c");
  EXPECT_EQ(text(only, 3), "Context:  Question: r Answer: a");
  // The previous example has the same prompt, so the mismatched answer comes from the example before it.
  EXPECT_EQ(text(only, 5), "Context:  Question: r Answer: a");
  EXPECT_EQ(learned(only, 5), " a$");
  EXPECT_EQ(data.train->learned_tokens(0), 3);
  EXPECT_THAT(data.facts, AllOf(Contains(HasSubstr("3 examples packed")),
                                Contains(HasSubstr("labelled answers: 2 good, 1 bad"))));
  EXPECT_THAT(data.notes, IsEmpty());
}

TEST_F(PreferenceData, LabelsOfOneKindAreAWarning) {
  const auto kind = PreferenceKind::kLabelled;
  const Datasets good = open(options(R"({"prompt": "q", "completion": "a", "label": true}
{"prompt": "r", "completion": "b", "label": true}
)",
                                     300),
                             kind);
  EXPECT_THAT(good.facts, Contains(HasSubstr("labelled answers: 2 good, 0 bad")));
  EXPECT_THAT(good.notes, Contains(HasSubstr("no answer is labelled bad")));
  const Datasets bad = open(options(R"({"prompt": "q", "completion": "a", "label": 0})", 300), kind);
  EXPECT_THAT(bad.notes, Contains(HasSubstr("no answer is labelled good")));
}

TEST_F(PreferenceData, CountsBrokenRecords) {
  SftOptions some = options(
      "{\"prompt\": \"q\", \"chosen\": \"a\", \"rejected\": \"b\", \"id\": 1}\n"
      "{\"prompt\": \"q\", \"chosen\": \"a\"}\n"
      "{\"prompt\": \"q\", \"chosen\": \"\", \"rejected\": \"b\"}\n",
      200);
  EXPECT_THAT(error_of([&] { open(some); }), AllOf(HasSubstr("pairs.jsonl:2"), HasSubstr("--skip-bad")));
  some.skip_bad = true;
  const Datasets data = open(some);
  EXPECT_THAT(data.notes, Contains(AllOf(HasSubstr("skipped 2 of 3 records"), HasSubstr("pairs.jsonl:2"))));
  EXPECT_THAT(data.facts, Contains(HasSubstr("id (1)")));
  some.dataset = folder_.write("bad.jsonl", "{\"messages\": []}\n");
  EXPECT_THAT(error_of([&] { open(some); }), HasSubstr("none of 1 records is a pair of answers"));
}

TEST_F(PreferenceData, HoldsOutWholePairs) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += fmt::format("{{\"prompt\": \"{}\", \"chosen\": \"a\", \"rejected\": \"b\"}}\n", i);
  SftOptions some = options(lines, 70);
  some.shares = "75,25";
  some.valid_samples = 1;
  const Datasets data = open(some);
  EXPECT_THAT(data.facts,
              AllOf(Contains(HasSubstr("(train): 30 pairs")), Contains(HasSubstr("(validation): 10 pairs"))));
}

TEST_F(PreferenceData, UnreadHeldOutPairsAreReported) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += fmt::format("{{\"prompt\": \"{}\", \"chosen\": \"a\", \"rejected\": \"b\"}}\n", i);
  SftOptions some = options(lines, 70);
  some.shares = "75,25";
  some.can_evaluate = false;
  EXPECT_THAT(open(some).notes,
              Contains(AllOf(HasSubstr("split 75,25 holds out 10 pairs, but this stage evaluates nothing"),
                             HasSubstr("split=100,0,0"))));
  std::filesystem::create_directory(folder_.path() / "both");
  folder_.write("both/validation.jsonl", lines);
  folder_.write("both/train.jsonl", lines);
  some.dataset = (folder_.path() / "both").string();
  some.shares.clear();
  EXPECT_THAT(open(some).facts, Contains(HasSubstr("files for validation and test are not read")));
}

TEST_F(PreferenceData, PairsThatContradictEachOtherGiveAWarning) {
  const Datasets data =
      open(options("{\"prompt\": \"q\", \"chosen\": \"a\", \"rejected\": \"b\"}\n"
                   "{\"prompt\": \"q\", \"chosen\": \"b\", \"rejected\": \"a\"}\n"
                   "{\"prompt\": \"r\", \"chosen\": \"b\", \"rejected\": \"a\"}\n",
                   200));
  EXPECT_THAT(data.notes, Contains(HasSubstr("2 of 3 pairs contradict each other")));
}

TEST_F(PreferenceData, TheFirstRecordShowsTheKind) {
  const auto kind = [&](const std::string& name, const std::string& text) {
    return kind_of_first_record(find_conversations(folder_.write(name, text)).train);
  };
  const std::string pair = R"({"prompt": "q", "chosen": "a", "rejected": "b"})";
  EXPECT_EQ(kind("a.jsonl", "\n" + pair + "\n"), PreferenceKind::kPairs);
  EXPECT_EQ(kind("b.json", "[\n" + pair + "\n]"), PreferenceKind::kPairs);
  EXPECT_EQ(kind("c.jsonl", R"({"prompt": "q", "completion": "a", "label": false})"),
            PreferenceKind::kLabelled);
  EXPECT_EQ(kind("g.jsonl", R"({"prompt": "q", "completion": "a", "label": 0})"), PreferenceKind::kLabelled);
  EXPECT_EQ(kind("d.jsonl", R"({"prompt": "q", "completion": "a", "label": "x"})"), std::nullopt);
  EXPECT_EQ(kind("h.jsonl", R"({"prompt": "q", "response": "a", "chosen": null, "rejected": null})"),
            std::nullopt);
  EXPECT_EQ(kind("e.jsonl", R"({"question": "q", "answer": "a"})"), std::nullopt);
  EXPECT_EQ(kind("f.jsonl", "{\"chosen\": "), std::nullopt);
}

}  // namespace
}  // namespace primus::data
