// Tests of `primus train posttrain`: a fine-tuned model gives the taught answers, several ranks train as one
// device does, and mistakes are reported.
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/files/file.h"
#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

using test::losses;
using test::run_folder;

struct Taught {
  const char *question, *answer;
};
constexpr Taught kTaught[] = {{"Capital of France?", "Paris"},
                              {"Two and two?", "four"},
                              {"Colour of grass?", "green"},
                              {"Opposite of hot?", "cold"},
                              {"Who barks?", "a dog"}};

class Posttrain : public ::testing::Test {
 protected:
  Posttrain() {
    std::string lines;
    for (const Taught& one : kTaught)
      lines += nlohmann::json{{"question", one.question}, {"answer", one.answer}}.dump() + "\n";
    write("taught.jsonl", lines);
    write("exp.yaml", R"(work_group: w
user_name: u
exp_name: run
workspace: )" + folder_.path().string() +
                          R"(
modules:
  post_trainer:
    framework: native
    config: sft_trainer.yaml
    model: llama_tiny.yaml
    overrides:
      num_layers: 2
      hidden_size: 64
      ffn_hidden_size: 128
      num_attention_heads: 4
      sft_dataset_name: )" +
                          at("taught.jsonl") +
                          R"(
      sft_conversation_format: squad
      enable_packed_sequences: true
      use_packed_attention: true
      seq_length: 128
      global_batch_size: 2
      bf16: false
      lr: 5.0e-3
      weight_decay: 0.0
      lr_warmup_iters: 5
      train_iters: 120
      eval_iters: 0
      num_threads: 1
)");
  }

  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_.path() / name, std::ios::binary) << content;
  }
  ProgramResult train(std::vector<std::string> more, const std::string& command = "posttrain") const {
    std::vector<std::string> words = {"train", command, "--config", at("exp.yaml")};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  }

  TemporaryFolder folder_;
};

TEST_F(Posttrain, AModelGivesTheAnswersItWasTaught) {
  const ProgramResult result = train({});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("5 conversations packed into"), HasSubstr("the loss is over 33 of 245"),
                    HasSubstr("fine-tuning starts from random weights")));
  const auto steps = losses(run_folder(folder_.path()));
  EXPECT_GT(steps.at(1).loss, 4);
  EXPECT_LT(steps.at(120).loss, 0.1);
  for (const Taught& one : kTaught) {
    const ProgramResult said = run_program(
        {"generate", run_folder(folder_.path()).string(), "--prompt",
         std::string("Context:  Question: ") + one.question + " Answer:", "-n", "12", "-t", "0", "--json"});
    ASSERT_EQ(said.exit_code, 0) << said.err;
    // The generated text ends after the answer, which shows that the model has learned to end its turn.
    EXPECT_EQ(nlohmann::json::parse(said.out).at("text"), std::string(" ") + one.answer);
    EXPECT_THAT(said.err, HasSubstr("trained on conversations"));
  }
  // `generate --template auto` and `chat` use the format of the fine-tuning.
  const std::string run = run_folder(folder_.path()).string();
  EXPECT_EQ(run_program({"generate", run, "--template", "auto", "--prompt", "Who barks?", "-t", "0"}).out,
            " a dog\n");
  write("asked.jsonl", "\"Who barks?\"\n\"Two and two?\"\n");
  const ProgramResult many =
      run_program({"generate", run, "--template", "auto", "--prompts", at("asked.jsonl"), "-t", "0"});
  EXPECT_THAT(many.out, AllOf(HasSubstr("\"text\":\" a dog\""), HasSubstr("\"text\":\" four\"")));
  for (const char* command : {"chat", "generate"}) {
    const ProgramResult no_place = run_program({command, run, "--template", "auto", "--system", "Be brief."});
    EXPECT_EQ(no_place.exit_code, 2);
    EXPECT_THAT(no_place.err, HasSubstr("does not support a system message"));
  }
  // The loss of the taught answers is almost 0.
  const auto left = nlohmann::json::parse(
      run_program({"eval", "loss", run, "--conversations", at("taught.jsonl"), "--json"}).out);
  EXPECT_EQ(left.at("tokens"), 33);
  EXPECT_EQ(left.at("conversations"), 5);
  EXPECT_EQ(left.at("format"), "squad");
  EXPECT_GT(left.at("context").get<int>(), 1);
  EXPECT_LT(left.at("loss").get<double>(), 0.1);
  EXPECT_EQ(
      run_program({"chat", run_folder(folder_.path()).string(), "-t", "0"}, {.input = "Who barks?\n"}).out,
      " a dog\n");
  // A finished run has no steps left, also for `train pretrain` with the same file.
  EXPECT_THAT(train({}, "pretrain").out, HasSubstr("nothing left to do"));
}

// An experiment with a recipe of Megatron-Bridge trains adapters of the model that hf_path names.
TEST_F(Posttrain, ARecipeOfMegatronBridgeTrainsAdapters) {
  ASSERT_EQ(train({"train_iters=40", "exp_name=base"}).exit_code, 0);
  const std::string base = (run_folder(folder_.path(), "base") / "checkpoints/iter_0000040").string();
  write("bridge.yaml",
        "work_group: w\nuser_name: u\nexp_name: run\nworkspace: " + folder_.path().string() +
            "\nmodules:\n  post_trainer:\n    framework: megatron_bridge\n    config: "
            "sft_trainer.yaml\n    model: llama3_8b.yaml\n    overrides: {peft: lora, "
            "packed_sequence: true, seq_length: 128, global_batch_size: 2, finetune_lr: 5.0e-3, "
            "lr_warmup_iters: 2, train_iters: 60, eval_iters: 0, precision_config: bf16_mixed}\n");
  const std::vector<std::string> words = {"train", "posttrain", "--config", at("bridge.yaml"),
                                          "num_threads=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return run_program(more);
  };
  const ProgramResult tuned =
      with({"hf_path=" + base, "sft_dataset_name=" + at("taught.jsonl"), "sft_conversation_format=squad"});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_THAT(tuned.err, AllOf(HasSubstr("written for Megatron-Bridge; the native engine runs it"),
                               HasSubstr("lora: "), HasSubstr("weights loaded from " + base)));
  const auto steps = losses(run_folder(folder_.path()));
  EXPECT_LT(steps.at(60).loss, 0.9 * steps.at(1).loss);
  // The data set that the recipe downloads must be given.
  const ProgramResult without = with({"hf_path=" + base, "exp_name=other"});
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_THAT(without.err, AllOf(HasSubstr("the recipe downloads the data set rajpurkar/squad"),
                                 HasSubstr("error: file or folder 'rajpurkar/squad'")));
}

TEST_F(Posttrain, RanksEqualOneDevice) {
  for (const auto& [name, more] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"one", {}},
           {"data", {"--nproc", "2"}},
           {"context", {"--nproc", "2", "context_parallel_size=2"}},
           {"tensor", {"--nproc", "2", "tensor_model_parallel_size=2"}},
           {"pipeline", {"--nproc", "2", "pipeline_model_parallel_size=2"}},
           {"sharded", {"--nproc", "2", "data_parallel_sharding_strategy=optim_grads_params"}}}) {
    std::vector<std::string> words = {"train_iters=4", "global_batch_size=4", "exp_name=" + name,
                                      "num_threads=1"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = train(words);
    ASSERT_EQ(result.exit_code, 0) << name << result.err;
    const auto one = losses(run_folder(folder_.path(), "one")),
               now = losses(run_folder(folder_.path(), name));
    ASSERT_EQ(now.size(), 4U);
    for (const auto& [iteration, step] : one) {
      EXPECT_NEAR(now.at(iteration).loss, step.loss, 1e-5 * step.loss) << name;
      EXPECT_NEAR(now.at(iteration).gradient_norm, step.gradient_norm, 1e-4 * step.gradient_norm) << name;
    }
  }
}

// On held-out conversations, `eval loss` equals the validation loss of training.
TEST_F(Posttrain, EvalReturnsTheValidationLossOfTraining) {
  std::filesystem::create_directories(folder_.path() / "data");
  std::filesystem::copy(folder_.path() / "taught.jsonl", folder_.path() / "data/train.jsonl");
  write("data/validation.jsonl",
        "{\"question\": \"Capital of Spain?\", \"answer\": \"Madrid\"}\n"
        "{\"question\": \"Three and one?\", \"answer\": \"four\"}\n"
        "{\"question\": \"Colour of snow?\", \"answer\": \"white\"}\n"
        "{\"question\": \"Who purrs?\", \"answer\": \"a cat\"}\n");
  // One evaluation uses each of the four conversations once.
  const ProgramResult result = train({"sft_dataset_name=" + at("data"), "train_iters=10", "eval_interval=10",
                                      "eval_iters=2", "enable_packed_sequences=false"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string run = run_folder(folder_.path()).string();
  const std::string lines = read_file(Path(run) / "evaluations.jsonl");
  const auto evaluation = nlohmann::json::parse(lines.substr(0, lines.find('\n')));
  for (const std::string& what : {at("data"), at("data/validation.jsonl")}) {
    const ProgramResult found = run_program({"eval", "loss", run, "--conversations", what, "--json"});
    ASSERT_EQ(found.exit_code, 0) << found.err;
    const double loss = evaluation.at("lm_loss");
    EXPECT_NEAR(nlohmann::json::parse(found.out).at("loss").get<double>(), loss, 1e-5 * loss) << lines;
  }
  const ProgramResult both = run_program(
      {"eval", "loss", run, "--conversations", at("data"), "--data", at("data/validation.jsonl")});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("either --data PATH or --conversations PATH"));
}

TEST_F(Posttrain, StartsFromAModelWithoutAnExperiment) {
  ASSERT_EQ(train({"train_iters=20"}).exit_code, 0);
  const ProgramResult result =
      run_program({"train", "posttrain", "load=" + run_folder(folder_.path()).string(),
                   "sft_dataset_name=" + at("taught.jsonl"), "sft_conversation_format=squad", "--epochs", "2",
                   "workspace=" + folder_.path().string(), "num_threads=1", "seq_length=64"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("checkpoint"));
  EXPECT_THAT(run_program({"train", "posttrain"}).err, HasSubstr("load=FOLDER sft_dataset_name=FILE"));
}

// A dry run works on a machine without the model and the data.
TEST_F(Posttrain, ADryRunNeedsNoInputs) {
  const ProgramResult plan =
      train({"sft_dataset_name=tatsu-lab/alpaca", "hf_path=NousResearch/Meta-Llama-3-8B", "--dry-run"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.err, AllOf(HasSubstr("sft_dataset_name is 'tatsu-lab/alpaca'"),
                              HasSubstr("hf_path is 'NousResearch/Meta-Llama-3-8B'")));
  const ProgramResult start = train({"sft_dataset_name=tatsu-lab/alpaca"});
  EXPECT_EQ(start.exit_code, 2);
  EXPECT_THAT(start.err,
              AllOf(HasSubstr("Primus does not download"), HasSubstr("load_dataset('tatsu-lab/alpaca'")));
  const ProgramResult weights = train({"hf_path=NousResearch/Meta-Llama-3-8B"});
  EXPECT_EQ(weights.exit_code, 2);
  EXPECT_THAT(weights.err, HasSubstr("folder 'NousResearch/Meta-Llama-3-8B' does not exist"));
}

TEST_F(Posttrain, ConversationsAreShownWithTheTrainedTokens) {
  const std::vector<std::string> words = {"data",  "conversations",    at("taught.jsonl"), "-f",
                                          "squad", "--tokenizer-type", "ByteTokenizer",    "--seq-length",
                                          "48"};
  const ProgramResult shown = run_program(words);
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out,
              AllOf(HasSubstr("1: 53 tokens, 3 learned\nContext:  Question: Capital of France? Answer:"
                              "\u27E6 Pa\u27E7ris<|endoftext|>\n"),
                    HasSubstr("5 conversations, 245 tokens, of which 26 are learned"),
                    HasSubstr("cut: 3 conversations longer than a sequence of 48")));
  std::vector<std::string> json = words;
  json.insert(json.end(), {"--json", "--show", "1"});
  const auto all = nlohmann::json::parse(run_program(json).out);
  EXPECT_EQ(all.at("learned_tokens"), 26);
  EXPECT_EQ(all.at("shown").size(), 1U);
  EXPECT_EQ(all.at("shown")[0].at("parts")[1].at("text"), " Pa");
  const ProgramResult none = run_program({"data", "conversations", at("taught.jsonl")});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("there is no tokenizer"));
}

TEST_F(Posttrain, MistakesHaveALocationAndANextStep) {
  write("bad.jsonl", "{\"question\": \"q\", \"answer\": \"a\"}\n{\"question\": 7, \"answer\": \"a\"}\n");
  const ProgramResult bad = train({"sft_dataset_name=" + at("bad.jsonl")});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("bad.jsonl:2:"));
  const ProgramResult chatml = train({"sft_conversation_format=chatml"});
  EXPECT_EQ(chatml.exit_code, 2);
  EXPECT_THAT(chatml.err, HasSubstr("the special token <|im_start|>"));
  const ProgramResult stage = train({"stage=pretrain", "mock_data=true"});
  EXPECT_EQ(stage.exit_code, 2);
  EXPECT_THAT(stage.err, HasSubstr("stage is pretrain, but posttrain needs a stage that fine-tunes"));
  const ProgramResult none = train({"sft_dataset_name=null"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("there are no conversations to train on"));
}

}  // namespace
}  // namespace primus
