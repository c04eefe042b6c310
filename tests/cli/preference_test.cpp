// Tests of `primus train dpo` and `primus train kto` without an experiment file: a model prefers the chosen
// answers, several ranks train as one device does, a killed run resumes with the same bits, and mistakes are
// reported.
#include <filesystem>
#include <fstream>

#include "base/files/file.h"
#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

using test::losses;
using test::run_folder;

class Preferences : public ::testing::Test {
 protected:
  Preferences() {
    std::string answers, pairs, labelled;
    for (const std::string name : {"Ada", "Ben", "Cara", "Dan", "Eva", "Finn", "Gina", "Hugo"}) {
      const std::string greet = "Greet " + name + ".", good = "Hello " + name + "!",
                        bad = "Go, " + name + ".";
      for (const std::string& answer : {good, bad})
        answers += nlohmann::json{{"instruction", greet}, {"output", answer}}.dump() + "\n";
      pairs += nlohmann::json{{"prompt", greet}, {"chosen", good}, {"rejected", bad}}.dump() + "\n";
      labelled += nlohmann::json{{"prompt", greet}, {"completion", good}, {"label", true}}.dump() + "\n" +
                  nlohmann::json{{"prompt", greet}, {"completion", bad}, {"label", false}}.dump() + "\n";
    }
    write("answers.jsonl", answers);
    write("pairs.jsonl", pairs);
    write("labelled.jsonl", labelled);
    write("exp.yaml", R"(work_group: w
user_name: u
exp_name: base
workspace: )" + folder_.path().string() +
                          R"(
modules:
  post_trainer:
    framework: native
    config: sft_trainer.yaml
    model: llama_tiny.yaml
    overrides:
      hf_path: null
      num_layers: 2
      hidden_size: 64
      ffn_hidden_size: 128
      num_attention_heads: 4
      sft_dataset_name: )" +
                          at("answers.jsonl") +
                          R"(
      sft_conversation_format: squad
      enable_packed_sequences: true
      seq_length: 256
      global_batch_size: 2
      bf16: false
      lr: 5.0e-3
      weight_decay: 0.0
      lr_warmup_iters: 5
      train_iters: 100
      eval_iters: 0
      num_threads: 1
)");
  }

  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_.path() / name, std::ios::binary) << content;
  }
  void make_base() const {
    const ProgramResult result = run_program({"train", "posttrain", "--config", at("exp.yaml")});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  ProgramResult train(const std::string& stage, const std::string& name,
                      const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train",
                                      stage,
                                      "load=" + run_folder(folder_.path(), "base").string(),
                                      "data=" + at(stage == "kto" ? "labelled.jsonl" : "pairs.jsonl"),
                                      "workspace=" + folder_.path().string(),
                                      "work_group=w",
                                      "user_name=u",
                                      "exp_name=" + name,
                                      "bf16=false",
                                      "num_threads=1",
                                      "sft_conversation_format=squad"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  }
  // Returns the value of a metric in the last step.
  double last(const std::string& name, const char* key) const {
    const std::string text = read_file(run_folder(folder_.path(), name) / "metrics.jsonl");
    const std::size_t begin = text.rfind('\n', text.size() - 2);
    return nlohmann::json::parse(text.substr(begin == std::string::npos ? 0 : begin + 1)).at(key);
  }

  TemporaryFolder folder_;
};

TEST_F(Preferences, AModelGivesTheChosenAnswers) {
  make_base();
  const auto answer = [&](const std::string& stage) {
    return run_program({"generate", run_folder(folder_.path(), stage).string(), "--template", "auto",
                        "--prompt", "Greet Eva.", "-t", "0"})
        .out;
  };
  const ProgramResult pairs = train("dpo", "dpo", {"train_iters=40", "lr=3e-4"});
  ASSERT_EQ(pairs.exit_code, 0) << pairs.err;
  EXPECT_GT(last("dpo", "rewards/margins"), 0.5);
  EXPECT_EQ(answer("dpo"), " Hello Eva!\n");
  // A batch of two examples may lack good or bad answers, so the metrics of a step do not compare the two
  // kinds.
  const ProgramResult labels = train("kto", "kto", {"train_iters=80", "lr=3e-4"});
  ASSERT_EQ(labels.exit_code, 0) << labels.err;
  EXPECT_THAT(answer("kto"), ::testing::StartsWith(" Hello "));
}

TEST_F(Preferences, RanksTrainAsOneDeviceDoes) {
  make_base();
  for (const auto& [name, more] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"one", {}},
           {"data", {"--nproc", "2"}},
           {"tensor", {"--nproc", "2", "tensor_model_parallel_size=2"}},
           {"pipeline", {"--nproc", "2", "pipeline_model_parallel_size=2"}},
           {"sharded", {"--nproc", "2", "data_parallel_sharding_strategy=optim_grads_params"}}}) {
    SCOPED_TRACE(name);
    std::vector<std::string> words = {"train_iters=4", "global_batch_size=4", "seq_length=128", "lr=1e-3"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = train("dpo", name, words);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto one = losses(run_folder(folder_.path(), "one")),
               now = losses(run_folder(folder_.path(), name));
    ASSERT_EQ(now.size(), 4U);
    for (const auto& [iteration, step] : one) {
      EXPECT_NEAR(now.at(iteration).loss, step.loss, 1e-5 * step.loss);
      EXPECT_NEAR(now.at(iteration).gradient_norm, step.gradient_norm, 1e-4 * step.gradient_norm);
    }
  }
}

TEST_F(Preferences, MistakesAreReported) {
  const auto refused = [&](const std::vector<std::string>& words) {
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(refused({"train", "dpo"}), HasSubstr("load=FOLDER data=FILE"));
  EXPECT_THAT(refused({"train", "dpo", "--config", at("exp.yaml")}),
              AllOf(HasSubstr("stage is sft, but 'train dpo' needs stage: dpo"),
                    HasSubstr("config: dpo_trainer.yaml sets the stage")));
}

}  // namespace
}  // namespace primus
