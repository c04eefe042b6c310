// Tests whole runs on conversations: which tokens count in the loss, packed and padded data, and resumption
// bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "lm/train/whole_runs.h"

namespace primus::test {
namespace {

using testing::HasSubstr;

class SftRuns : public WholeRuns {
 protected:
  SftRuns()
      : WholeRuns({"stage=sft", "mock_data=false", "calculate_per_token_loss=true", "bf16=false",
                   "num_query_groups=2", "sft_conversation_format=squad", "seq_length=48"}) {}

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_.path() / name) << content;
    return (folder_.path() / name).string();
  }
  // Writes questions and answers of different lengths.
  std::string questions(const std::string& name, int count) const {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      lines += R"({"question": ")" + std::string(static_cast<std::size_t>(1 + i % 3), 'q') +
               std::to_string(i) + R"(", "answer": ")" +
               std::string(static_cast<std::size_t>(1 + i % 5), 'a') + "\"}\n";
    }
    return "sft_dataset_name=" + write(name, lines);
  }
  void expect_close(const std::string& a, const std::string& b) const {
    for (const char* key : {"lm_loss", "grad_norm"}) {
      const std::vector<double> of_a = losses(a, key), of_b = losses(b, key);
      ASSERT_EQ(of_a.size(), of_b.size());
      ASSERT_FALSE(of_a.empty());
      for (std::size_t i = 0; i < of_a.size(); ++i) EXPECT_NEAR(of_a[i], of_b[i], 1e-5 * of_a[i]) << key << i;
    }
  }
};

// The loss of an evaluation weighs all labels equally, for any division into batches.
TEST_F(SftRuns, AnEvaluationOfSeveralBatchesCountsEachLabelOnce) {
  questions("train.jsonl", 20);
  std::string lines;
  for (const std::size_t answer : {1, 30, 2, 25})
    lines += R"({"question": "q", "answer": ")" + std::string(answer, 'a') + "\"}\n";
  write("validation.jsonl", lines);
  const std::vector<std::string> settings = {"sft_dataset_name=" + folder_.path().string(),
                                             "lr=0",
                                             "min_lr=0",
                                             "train_iters=1",
                                             "eval_interval=1",
                                             "dataloader_type=single"};
  const auto evaluated = [&](const std::string& name, int iterations, int batch) {
    auto all = settings;
    all.push_back("eval_iters=" + std::to_string(iterations));
    all.push_back("global_batch_size=" + std::to_string(batch));
    run(name, all);
    const std::string line = read_file(folder_.path() / "w/u" / name / "evaluations.jsonl");
    return nlohmann::json::parse(line.substr(0, line.find('\n'))).at("lm_loss").get<double>();
  };
  // Evaluates four conversations as one batch, as two batches and as four batches.
  const double one = evaluated("one", 1, 4);
  EXPECT_NEAR(evaluated("two", 2, 2), one, 1e-5 * one);
  EXPECT_NEAR(evaluated("four", 4, 1), one, 1e-5 * one);
}

TEST_F(SftRuns, ResumeBitForBitAndEvaluate) {
  const std::string data = questions("q.jsonl", 40);
  const std::vector<std::string> settings = {data,
                                             "enable_packed_sequences=true",
                                             "use_packed_attention=true",
                                             "dataloader_type=cyclic",
                                             "seq_length=100",
                                             "train_iters=12",
                                             "eval_iters=1",
                                             "eval_interval=4"};
  std::vector<std::string> first = settings;
  first.push_back("exit_interval=6");
  const Path whole = run("whole", settings);
  run("twice", first);
  const Path twice = run("twice", settings);
  EXPECT_EQ(losses("twice"), losses("whole"));
  EXPECT_EQ(losses("whole").size(), 12U);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(read_file(twice / file), read_file(whole / file)) << file;
  const Path evaluations = folder_.path() / "w/u/whole/evaluations.jsonl";
  EXPECT_THAT(read_file(evaluations), HasSubstr("validation"));
}

TEST_F(SftRuns, OtherConversationsAreRefused) {
  const std::string data = questions("q.jsonl", 8);
  run("run", {data, "exit_interval=2"});
  EXPECT_THAT(refusal("run", {questions("other.jsonl", 7)}),
              AllOf(HasSubstr("another set of conversations"), HasSubstr("allow_data_change")));
  const std::string longer = "seq_length=300", positions = "max_position_embeddings=300";
  run("long", {data, longer, positions, "exit_interval=2"});
  EXPECT_THAT(refusal("long", {data, longer, positions, "sft_conversation_format=alpaca"}),
              HasSubstr("was trained with sft_conversation_format: squad"));
  EXPECT_THAT(
      refusal("run", {data, "enable_packed_sequences=true", "use_packed_attention=true"}),
      HasSubstr("was trained with enable_packed_sequences: false, use_packed_attention: false, which"));
  run("unheld", {questions("many.jsonl", 20), "exit_interval=2"});
  EXPECT_THAT(refusal("unheld", {questions("many.jsonl", 20), "eval_iters=1"}),
              HasSubstr("was trained with eval_iters: 0"));
  questions("many.jsonl", 19);  // another file with the old name
  EXPECT_THAT(refusal("unheld", {"sft_dataset_name=" + (folder_.path() / "many.jsonl").string()}),
              HasSubstr("whose content has changed"));
  run("run", {data});  // with the original data
}

// Four conversations per step train equally as four padded sequences and as two packs.
TEST_F(SftRuns, PaddedAndPackedSamplesTrainEqually) {
  const std::string data = questions("q.jsonl", 4);
  run("padded", {data, "global_batch_size=4", "seq_length=48"});
  run("packed", {data, "global_batch_size=2", "seq_length=80", "enable_packed_sequences=true",
                 "use_packed_attention=true"});
  expect_close("padded", "packed");
  run("microbatch", {data, "global_batch_size=4", "micro_batch_size=4"});
  expect_close("padded", "microbatch");
  // Without a mean over all labels, short answers have more weight.
  run("means", {data, "global_batch_size=4", "calculate_per_token_loss=false"});
  EXPECT_GT(std::abs(losses("means").front() - losses("padded").front()), 1e-4);
  // Packs without masks between conversations give another result.
  run("joined", {data, "global_batch_size=2", "seq_length=80", "enable_packed_sequences=true"});
  EXPECT_GT(std::abs(losses("joined").front() - losses("packed").front()), 1e-4);
}

// If every token is learned, training equals pretraining on text.
TEST_F(SftRuns, TrainingOnAllTokensEqualsPretraining) {
  std::string text, ids;
  for (int i = 0; i < 48; ++i) {
    text += static_cast<char>('a' + i * 7 % 26);
    ids += std::to_string(static_cast<int>(text.back())) + ", ";
  }
  write("text.txt", text);
  const std::string data = "sft_dataset_name=" + write("ids.jsonl", "{\"input_ids\": [" + ids + "256]}");
  run("sft", {data, "global_batch_size=1", "train_iters=1"});
  run("text", {"stage=pretrain", "data_path=" + (folder_.path() / "text.txt").string(), "split=100,0,0",
               "global_batch_size=1", "train_iters=1"});
  EXPECT_EQ(losses("sft"), losses("text"));
  EXPECT_EQ(losses("sft", "grad_norm"), losses("text", "grad_norm"));
}

// The prompt of a generated sample is the complete question, even if it is long, in the format used in
// training.
TEST_F(SftRuns, SamplesContainTheCompleteQuestion) {
  const std::string question(300, 'q');
  run("run",
      {"sft_dataset_name=" + write("long.jsonl", "{\"question\": \"" + question + "\", \"answer\": \"a\"}\n"),
       "seq_length=400", "max_position_embeddings=512", "sample_interval=2", "sample_tokens=4"});
  EXPECT_THAT(read_file(folder_.path() / "w/u/run/samples.jsonl"),
              HasSubstr("Context:  Question: " + question + " Answer:"));
}

TEST_F(SftRuns, StartFromWeightsByAnyName) {
  const std::string data = questions("q.jsonl", 4);
  const Path base = run("base", {data});
  for (const char* key : {"load", "pretrained_checkpoint", "hf_path"}) {
    run(key, {data, std::string(key) + "=" + base.string()});
    EXPECT_LT(losses(key).front(), losses("base").front()) << key;
    EXPECT_EQ(losses(key), losses("load")) << key;
  }
  EXPECT_THAT(refusal("a", {data, "hf_path=NousResearch/Llama"}), HasSubstr("Primus does not download"));
  write_file(folder_.path() / "latest_checkpointed_iteration.txt", "7");
  EXPECT_THAT(refusal("b", {data, "pretrained_checkpoint=" + folder_.path().string()}),
              HasSubstr("a checkpoint of Megatron-LM"));
}

}  // namespace
}  // namespace primus::test
