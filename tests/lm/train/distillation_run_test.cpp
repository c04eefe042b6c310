// Tests whole runs of distillation: what the student learns, resumption bit for bit, and refused teachers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lm/train/whole_runs.h"

namespace primus::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DistillationRuns : public WholeRuns {
 protected:
  DistillationRuns()
      : WholeRuns({"mock_data=false", "bf16=false", "num_query_groups=2", "sft_conversation_format=squad",
                   "seq_length=64", "dataloader_type=cyclic", "lr=1e-2"}) {
    std::string lines;
    for (int i = 0; i < 8; ++i)
      lines += fmt::format("{{\"prompt\": \"{}\", \"response\": \"{}\"}}\n", i, i % 2 == 0 ? "aab" : "bba");
    write_file(folder_.path() / "chats.jsonl", lines);
  }
  std::string data() const { return "sft_dataset_name=" + (folder_.path() / "chats.jsonl").string(); }
  static std::string teacher(const Path& folder) { return "teacher=" + folder.string(); }
};

TEST_F(DistillationRuns, TheStudentLearnsTheTeachersProbabilities) {
  const Path large = run("teacher", {"stage=sft", data(), "hidden_size=64", "train_iters=20"});
  const std::vector<std::string> settings = {"stage=distill", data(), teacher(large), "train_iters=40"};
  for (const char* beta : {"0", "0.5", "1"}) {
    SCOPED_TRACE(beta);
    std::vector<std::string> all = settings;
    all.push_back(fmt::format("beta={}", beta));
    const std::string name = fmt::format("student-{}", beta);
    run(name, all);
    EXPECT_LT(losses(name).back(), 0.05 * losses(name).front());
    EXPECT_THAT(log_of(name), HasSubstr("teacher: " + large.string()));
  }
  // A run on another run's folder uses its newest checkpoint as the teacher.
  run("from-run", {"stage=distill", data(), teacher(folder_.path() / "w/u/teacher"), "train_iters=1"});
  EXPECT_EQ(losses("from-run").front(), losses("student-0.5").front());
}

TEST_F(DistillationRuns, GoOnBitForBit) {
  const Path large = run("teacher", {"stage=sft", data(), "hidden_size=64"});
  for (const bool adapters : {false, true}) {
    std::vector<std::string> settings = {"stage=distill", data(), teacher(large), "train_iters=6"};
    const std::string name = adapters ? "lora" : "full";
    SCOPED_TRACE(name);
    if (adapters) settings.emplace_back("lora={enabled: true, dim: 4, alpha: 8}");
    const Path whole = run(name, settings);
    settings.emplace_back("exit_interval=2");
    run(name + "-twice", settings);
    settings.pop_back();
    const Path twice = run(name + "-twice", settings);
    EXPECT_EQ(losses(name + "-twice"), losses(name));
    for (const char* part : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(read_file(twice / part), read_file(whole / part)) << part;
  }
}

TEST_F(DistillationRuns, TeachersThatDoNotFitAreRefused) {
  const std::vector<std::string> settings = {"stage=distill", data()};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> all = settings;
    all.push_back(more);
    return all;
  };
  EXPECT_THAT(refusal("none", settings), AllOf(HasSubstr("needs a teacher"), HasSubstr("set teacher_model")));
  EXPECT_THAT(refusal("missing", with(teacher(folder_.path() / "nowhere"))), HasSubstr("nowhere"));
  const Path null = run("null", {"mock_data=true", "data_path=null", "tokenizer_type=NullTokenizer",
                                 "vocab_size=511", "train_iters=1"});
  EXPECT_THAT(refusal("tokens", with(teacher(null))),
              AllOf(HasSubstr("has another tokenizer"), HasSubstr("same family")));
  const Path large = run("teacher", {"stage=sft", data(), "train_iters=1"});
  std::vector<std::string> wrong = with(teacher(large));
  wrong.emplace_back("beta=1.5");
  EXPECT_THAT(refusal("beta", wrong), HasSubstr("from 0 to 1"));
}

}  // namespace
}  // namespace primus::test
