// Tests whole runs on preferences: the answers that win, the reference model, and resumption bit for bit.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "lm/events/run_folder.h"
#include "lm/train/whole_runs.h"

namespace primus::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

class PreferenceRuns : public WholeRuns {
 protected:
  PreferenceRuns()
      : WholeRuns({"mock_data=false", "bf16=false", "num_query_groups=2", "sft_conversation_format=squad",
                   "seq_length=160", "max_position_embeddings=160", "dataloader_type=cyclic", "lr=3e-3",
                   "train_iters=6"}) {}

  // Writes pairs whose chosen answers consist of 'a' and whose rejected answers consist of 'b'.
  std::string pairs(const std::string& name = "pairs.jsonl", int count = 12) const {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      lines += fmt::format("{{\"prompt\": \"{}\", \"chosen\": \"{}\", \"rejected\": \"{}\"}}\n", i,
                           std::string(static_cast<std::size_t>(1 + i % 4), 'a'),
                           std::string(static_cast<std::size_t>(1 + i % 3), 'b'));
    }
    return file(name, lines);
  }
  std::string file(const std::string& name, const std::string& content) const {
    write_file(folder_.path() / name, content);
    return "sft_dataset_name=" + (folder_.path() / name).string();
  }
  std::vector<double> values(const std::string& name, const char* key) const {
    std::vector<double> all;
    for (const nlohmann::json& step : metrics(name)) all.push_back(step.at(key));
    return all;
  }
  // Runs `settings` at once and in two parts, and expects equal bits.
  void expect_same_bits_in_two_parts(const std::string& name, std::vector<std::string> settings,
                                     const char* margins = "rewards/margins") {
    SCOPED_TRACE(name);
    const Path whole = run(name, settings);
    settings.push_back("exit_interval=2");
    run(name + "-twice", settings);
    settings.pop_back();
    const Path twice = run(name + "-twice", settings);
    for (const char* key : {"lm_loss", margins, "grad_norm"})
      EXPECT_EQ(values(name + "-twice", key), values(name, key)) << key;
    for (const char* part : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(read_file(twice / part), read_file(whole / part)) << part;
  }

  const std::string lora_ = "lora={enabled: true, dim: 4, alpha: 8}";
};

TEST_F(PreferenceRuns, TheChosenAnswersWin) {
  const Path base = run(
      "base", {"stage=sft", pairs("unused.jsonl"), file("s.jsonl", R"({"prompt": "q", "response": "ab"})")});
  const std::vector<std::string> settings = {"stage=dpo", pairs(), load(base), "finetune=true",
                                             "train_iters=12"};
  for (const bool adapters : {false, true}) {
    std::vector<std::string> all = settings;
    if (adapters) all.insert(all.end(), {lora_, "lr=1e-2"});  // adapters need a higher rate
    const std::string name = adapters ? "lora" : "full";
    SCOPED_TRACE(name);
    run(name, all);
    const std::vector<double> losses = values(name, "lm_loss"), margins = values(name, "rewards/margins");
    // At the start, the model is the reference, so the loss is ln 2.
    EXPECT_NEAR(losses.front(), std::log(2.0), 1e-5);
    EXPECT_NEAR(margins.front(), 0, 1e-5);
    EXPECT_GT(margins.back(), 0.1);
    EXPECT_LT(losses.back(), losses.front());
    EXPECT_EQ(values(name, "rewards/accuracies").back(), 1);
  }
}

TEST_F(PreferenceRuns, GoOnBitForBit) {
  const Path base = run("base", {"stage=sft", file("s.jsonl", R"({"prompt": "q", "response": "ab"})")});
  expect_same_bits_in_two_parts("full", {"stage=dpo", pairs(), load(base), "finetune=true"});
  expect_same_bits_in_two_parts("lora", {"stage=dpo", pairs(), load(base), "finetune=true", lora_});
  expect_same_bits_in_two_parts("random", {"stage=dpo", pairs()});
  const std::string labelled = file("labelled.jsonl", R"({"prompt": "1", "completion": "aa", "label": true}
{"prompt": "2", "completion": "b", "label": false}
{"prompt": "3", "completion": "ab", "label": true}
)");
  expect_same_bits_in_two_parts("kto", {"stage=kto", labelled, load(base), "finetune=true"});
  expect_same_bits_in_two_parts("reward", {"stage=reward", pairs(), load(base), "finetune=true"}, "margin");
}

TEST_F(PreferenceRuns, ARewardModelStartsFromALanguageModelOrFromARewardModel) {
  const Path base = run("base", {"stage=sft", file("s.jsonl", R"({"prompt": "q", "response": "ab"})")});
  const std::vector<std::string> settings = {"stage=reward", pairs(), load(base), "finetune=true",
                                             "train_iters=12"};
  const Path reward = run("reward", settings);
  EXPECT_LT(values("reward", "lm_loss").back(), values("reward", "lm_loss").front());
  EXPECT_EQ(values("reward", "accuracy").back(), 1);
  EXPECT_THAT(read_file(reward / "config.json"), HasSubstr("ForSequenceClassification"));
  run("again", {"stage=reward", pairs(), load(reward), "finetune=true", "train_iters=1"});
  EXPECT_EQ(values("again", "accuracy").front(), 1);
  EXPECT_LT(values("again", "lm_loss").front(), values("reward", "lm_loss").back());

  EXPECT_THAT(refusal("sft", {"stage=dpo", pairs(), load(reward), "finetune=true"}),
              HasSubstr("is a reward model"));
  EXPECT_THAT(refusal("texts", {"stage=reward", pairs(), load(base), "sample_interval=1"}),
              HasSubstr("no sample texts"));
  EXPECT_THAT(refusal("adapters", {"stage=reward", pairs(), load(base), lora_}),
              HasSubstr("adapters are not supported"));
  const Path adapted = run("adapted", {"stage=dpo", pairs(), load(base), "finetune=true", lora_});
  EXPECT_THAT(refusal("of_adapted", {"stage=reward", pairs(), load(adapted), "finetune=true"}),
              AllOf(HasSubstr("primus model export"), Not(HasSubstr("lora.dim="))));
}

TEST_F(PreferenceRuns, DynamicFineTuningWeighsTokensByTheirProbability) {
  const std::string data = file("s.jsonl", R"({"prompt": "q", "response": "ab"})");
  run("nll", {"stage=sft", data, "loss_type=nll"});
  run("dft", {"stage=sft", data, "loss_type=dft"});
  // The loss of a token is -ln p with nll, and p * -ln p with dft, which is smaller and at most 1/e.
  EXPECT_LT(values("dft", "lm_loss").front(), values("nll", "lm_loss").front());
  EXPECT_LT(values("dft", "lm_loss").front(), std::exp(-1.0));
  EXPECT_THAT(refusal("a", {"stage=sft", data, "loss_type=[nll, dft]"}), HasSubstr("stage sft has no loss"));
}

// The reference is the model from which the run started, and not the model of the checkpoint.
TEST_F(PreferenceRuns, NeedTheirReferenceAgain) {
  const Path base = run("base", {"stage=sft", file("s.jsonl", R"({"prompt": "q", "response": "ab"})")});
  const std::vector<std::string> settings = {"stage=dpo", pairs(), load(base), "finetune=true"};
  std::vector<std::string> first = settings;
  first.push_back("exit_interval=2");
  run("run", first);
  std::filesystem::remove_all(base);
  EXPECT_THAT(refusal("run", settings), AllOf(HasSubstr("the reference model is the model at the start"),
                                              HasSubstr("does not exist any more")));
}

// The error names the stage, and not the data or the sequence length, which differ as a consequence.
TEST_F(PreferenceRuns, ARunOfAnotherStageIsNotContinued) {
  const std::string texts = file("s.jsonl", R"({"prompt": "q", "response": "ab"})");
  const Path base = run("base", {"stage=sft", texts});
  const std::string orpo = (folder_.path() / "w/u/orpo").string(), named = "load=" + base.string();
  run("orpo", {"stage=orpo", pairs(), named, "finetune=true"});
  EXPECT_THAT(refusal("orpo", {"stage=dpo", pairs(), named, "finetune=true", "train_iters=8"}),
              AllOf(HasSubstr("is a run of stage orpo, which stage dpo cannot continue"),
                    HasSubstr("exp_name=NEW " + named + "; or exp_name=NEW load=" + orpo)));
  const std::string longest = "seq_length=8";  // no pair fits
  EXPECT_THAT(refusal("base", {"stage=dpo", pairs(), longest, "train_iters=8"}),
              AllOf(HasSubstr("is a run of stage sft"), HasSubstr("exp_name=NEW load=")));
  run("text", {"mock_data=true"});
  EXPECT_THAT(refusal("text", {"stage=sft", texts, longest}), HasSubstr("is a run of stage pretrain"));
  run("score", {"stage=reward", pairs(), named, "finetune=true"});
  EXPECT_THAT(refusal("score", {"stage=dpo", pairs()}), HasSubstr("exp_name=NEW load=MODEL"));
  EXPECT_THAT(refusal("score", {"stage=dpo", pairs(), named, "finetune=true"}),
              testing::EndsWith("exp_name=NEW " + named));
}

// The folder to restore is the one from which the run started, even if `load` names its run.
// A run that is still training may delete the checkpoint that serves as the reference model.
TEST_F(PreferenceRuns, AReferenceOfARunInTrainingGetsAWarning) {
  const Path base = run("base", {"stage=sft", file("s.jsonl", R"({"prompt": "q", "response": "ab"})")});
  const std::string warning = "is still being trained: this run starts from its checkpoint iter_";
  run("free", {"stage=dpo", pairs(), load(base), "finetune=true", "train_iters=1"});
  EXPECT_THAT(log_of("free"), testing::Not(HasSubstr(warning)));
  const RunLock training(folder_.path() / "w/u/base");
  run("early", {"stage=dpo", pairs(), load(base), "finetune=true", "train_iters=1"});
  EXPECT_THAT(log_of("early"), HasSubstr(warning));
}

TEST_F(PreferenceRuns, AMissingReferenceIsNamed) {
  const std::string texts = file("s.jsonl", R"({"prompt": "q", "response": "ab"})");
  const Path first = run("base", {"stage=sft", texts});
  const Path of_base = folder_.path() / "w/u/base", copy = folder_.path() / "copy";
  run("run", {"stage=dpo", pairs(), load(of_base), "finetune=true"});
  run("base", {"stage=sft", texts, "train_iters=8"});
  std::filesystem::copy(first, copy, std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(first);
  EXPECT_THAT(refusal("run", {"stage=dpo", pairs(), load(of_base), "finetune=true", "train_iters=8"}),
              AllOf(HasSubstr("'" + first.string() + "' does not exist any more"),
                    HasSubstr("restore '" + first.string() + "', or set load to a copy")));
  // A copy of the reference is used, and its name is logged at every start.
  run("run", {"stage=dpo", pairs(), load(copy), "finetune=true", "train_iters=8"});
  for (const Path& reference : {first, copy}) {
    EXPECT_THAT(log_of("run"),
                HasSubstr("reference model: the model at the start of the run (" + reference.string() + ")"));
  }
  EXPECT_THAT(log_of("run"), HasSubstr("; the trained weights come from the run's own checkpoint"));
}

TEST_F(PreferenceRuns, EveryStageTrains) {
  for (const auto& [stage, loss] : {std::pair("orpo", ""), {"cpo", "loss_type=[simpo]"}, {"cpo", ""}}) {
    const std::string name = std::string(stage) + (loss[0] != 0 ? "-simpo" : "");
    std::vector<std::string> settings = {std::string("stage=") + stage, pairs(), "train_iters=12"};
    if (loss[0] != 0) settings.emplace_back(loss);
    run(name, settings);
    EXPECT_LT(values(name, "lm_loss").back(), values(name, "lm_loss").front()) << name;
    EXPECT_GT(values(name, "rewards/margins").back(), values(name, "rewards/margins").front()) << name;
  }
}

TEST_F(PreferenceRuns, SettingsThatDoNotFitAreRefused) {
  EXPECT_THAT(refusal("a", {"stage=kto", "loss_type=[hinge]", pairs()}), HasSubstr("hinge"));
  EXPECT_THAT(refusal("b", {"stage=dpo", "eval_iters=1", pairs()}), HasSubstr("has no evaluation"));
  EXPECT_THAT(refusal("c", {"stage=dpo", file("sft.jsonl", R"({"prompt": "q", "response": "ab"})")}),
              HasSubstr("no key 'chosen'"));
}

}  // namespace
}  // namespace primus::test
