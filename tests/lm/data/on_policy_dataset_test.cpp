// Tests data for on-policy distillation: the prompts of conversations, their given answers, prompts without
// answers, and conversations that are left out.
#include "lm/data/on_policy_dataset.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "data_test_util.h"
#include "lm/data/batch_loader.h"
#include "lm/tokenizer/simple.h"

namespace primus::data {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class OnPolicyData : public testing::Test {
 protected:
  // A has two answers, B one, and C has a prompt of six tokens.
  SftOptions three(const AnswerLimits& limits) const {
    return {.dataset = folder_.write("three.jsonl",
                                     R"({"input_ids": [1, 2, 3, 4, 5, 6], "loss_mask": [0, 1, 1, 0, 1, 0]}
{"input_ids": [5, 6], "loss_mask": [0, 1]}
{"input_ids": [7, 7, 7, 7, 7, 7, 8], "loss_mask": [0, 0, 0, 0, 0, 0, 1]}
)"),
            .own_answers = limits,
            .shuffle = false,
            .seq_length = 8,
            .train_samples = 1};
  }
  Datasets open(const SftOptions& options) const { return open_on_policy_datasets(options, *bytes_); }

  std::unique_ptr<const Tokenizer> bytes_ = make_byte_tokenizer();
  TemporaryFolder folder_;
};

TEST_F(OnPolicyData, PromptsEndBeforeTheLastAnswer) {
  const Datasets data = open(three({.max_completion_length = 2}));
  const OnPolicyDataset& train = OnPolicyDataset::of(*data.train);
  EXPECT_THAT(train.prompt(0), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(train.prompt(1), ElementsAre(5));
  EXPECT_THAT(train.prompt(2), ElementsAre(7, 7, 7, 7, 7, 7));
  EXPECT_THAT(train.prompt(3), ElementsAre(1, 2, 3, 4)) << "the second pass";
  EXPECT_THAT(train.conversation(0).tokens, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(train.conversation(0).learned, ElementsAre(0, 1, 1, 0, 1));
  EXPECT_THAT(train.conversation(1).tokens, ElementsAre(5, 6));
  EXPECT_EQ(on_policy_samples_of_epochs(three({.max_completion_length = 2}), *bytes_, 2).samples, 6);

  BatchLoader batches(train, {.micro_batch_size = 2, .prefetch = 0});
  batches.next();
  const Batch& batch = batches.next();
  EXPECT_THAT(batch.document_records, ElementsAre(2, -1, 3, -1));
  EXPECT_THAT(batch.document_starts, ElementsAre(0, 7, 8, 14, 16));
  EXPECT_THAT(batch.document_roles, ElementsAre(DocumentRole::kPrompt, DocumentRole::kNone,
                                                DocumentRole::kPrompt, DocumentRole::kNone));
}

TEST_F(OnPolicyData, PromptsWithoutRoomForAnAnswerAreLeftOut) {
  // The longest prompt has 6 of the 8 tokens of a sequence.
  for (const AnswerLimits& limits : {AnswerLimits{.max_completion_length = 3},
                                     AnswerLimits{.max_completion_length = 1, .max_prompt_length = 5}}) {
    const Datasets data = open(three(limits));
    EXPECT_EQ(data.train->description().substr(data.train->description().size() - 7), "(train)");
    EXPECT_THAT(data.notes, Contains(HasSubstr("skipped 1 of 3 conversations")));
    EXPECT_THAT(data.facts, Contains(HasSubstr("2 conversations packed")));
    EXPECT_THAT(OnPolicyDataset::of(*data.train).prompt(2), ElementsAre(1, 2, 3, 4));
  }
  EXPECT_THAT(error_of([&] { open(three({.max_completion_length = 9})); }),
              AllOf(HasSubstr("none of 3 conversations"), HasSubstr("answer of 9 tokens"),
                    HasSubstr("decrease max_completion_length")));
}

TEST_F(OnPolicyData, PromptsNeedNoAnswers) {
  SftOptions options = three({.max_completion_length = 3, .only_prompts = true});
  options.dataset = folder_.write("prompts.jsonl", R"({"prompt": "ab"}
{"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]}
{"prompt": "a much longer question", "response": "c"}
)");
  options.format = "squad";
  options.seq_length = 64;
  const Datasets data = open(options);
  const OnPolicyDataset& train = OnPolicyDataset::of(*data.train);
  EXPECT_EQ(train.prompt(0), train.prompt(1));
  EXPECT_THAT(bytes_->decode(train.prompt(0), false), AllOf(HasSubstr("ab"), testing::Not(HasSubstr("c"))));
  EXPECT_THAT(bytes_->decode(train.prompt(2), false), HasSubstr("longer question"));
  EXPECT_THAT(data.facts, Contains(HasSubstr("3 prompts, ")));
  EXPECT_THAT(end_ids_of_answers(options, *bytes_), SizeIs(1));
  options.own_answers->max_prompt_length = 40;
  EXPECT_THAT(open(options).notes,
              Contains(AllOf(HasSubstr("skipped 1 of "), HasSubstr("longer than max_prompt_length"))));
}

}  // namespace
}  // namespace primus::data
