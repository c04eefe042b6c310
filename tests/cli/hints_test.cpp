// Tests of hints for words, keys, rewards and names that other programs or other commands use.
#include <filesystem>
#include <fstream>

#include "cli/program_names.h"

namespace primus {
namespace {

constexpr const char* kFile = PRIMUS_SOURCE_DIR "/README.md";

void write(const Path& file, const std::string& content) { std::ofstream(file, std::ios::binary) << content; }

TEST(Hints, AWordNamesTheOptionToWhichItBelongs) {
  const std::string file = kFile;
  for (const auto& [words, hint] :
       {std::pair(std::vector<std::string>{"data", "tokenize", file}, "did you mean '--input " + file + "'?"),
        std::pair(std::vector<std::string>{"data", "train-tokenizer", file},
                  "did you mean '--input " + file + "'?"),
        std::pair(std::vector<std::string>{"config", "validate", file},
                  "did you mean '--config " + file + "'?"),
        std::pair(std::vector<std::string>{"generate", "model", "Name a prime."},
                  std::string("did you mean --prompt 'Name a prime.'?")),
        std::pair(std::vector<std::string>{"generate", "model", "--num-samples", "4"},
                  std::string("repeat the prompt in a file for --prompts")),
        std::pair(std::vector<std::string>{"generate", "model", "--stop", "."},
                  std::string("end tokens are in generation_config.json"))}) {
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(hint));
  }
}

TEST(Hints, KeysOfOtherProgramsHaveACounterpart) {
  for (const auto& [key, hint] :
       {std::pair("exp_nme", "did you mean 'exp_name'?"), std::pair("dpo_beta", "did you mean 'beta'?"),
        std::pair("reward_model_path", "reward=model:FOLDER scores answers"),
        std::pair("packing", "did you mean 'enable_packed_sequences'?"),
        std::pair("sample_packing", "did you mean 'enable_packed_sequences'?"),
        std::pair("train_on_inputs", "only the answers are learned"),
        std::pair("chat_template", "did you mean 'sft_conversation_format'?"),
        std::pair("val_set_size", "split=99,1,0 divides"), std::pair("learning_rte", "did you mean 'lr'?"),
        std::pair("load_in_4bit", "lora.base_weights=nf4"),
        std::pair("lora.load_in_4bit", "write base_weights: nf4"),
        std::pair("report_to", "'primus report RUN --mlflow FOLDER'"),
        std::pair("on_policy", "did you mean 'distillation_on_policy_share'?"),
        std::pair("seq_kd", "the teacher generates no answers here"),
        std::pair("ref_model", "the reference model is the model at the start"),
        std::pair("lora.lora_alpha", "did you mean 'alpha'?")}) {
    const ProgramResult result =
        run_program({"train", "pretrain", "--config",
                     PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml",
                     std::string(key) + "=1", "--dry-run"});
    EXPECT_EQ(result.exit_code, 2) << key;
    EXPECT_THAT(result.err, HasSubstr(hint));
  }
  // A part of a setting that is a map is explained with the setting.
  const ProgramResult part = run_program({"config", "reference", "lora.adapters"});
  EXPECT_EQ(part.exit_code, 0) << part.err;
  EXPECT_EQ(part.out, run_program({"config", "reference", "lora"}).out);
}

TEST(Hints, RewardsThatCannotScoreAreRefused) {
  const TemporaryFolder folder;
  const Path file = folder.path() / "answers.jsonl";
  write(file, R"({"prompt": "2+2?", "completion": "4", "answer": "4"})"
              "\n");
  for (const auto& [reward, hint] :
       {std::pair("exact:answer,number:answer", "reward='[exact:answer, number:answer]'"),
        std::pair("reward.py", "reward='program:python3 reward.py'"),
        std::pair("exact:answr", "did you mean 'answer'?"),
        std::pair("model:scorer", "'primus train grpo reward=model:FOLDER' does"),
        std::pair("/tmp", "write reward=model:/tmp"),
        std::pair("exact:completion", "compares each answer with itself")}) {
    const ProgramResult result = run_program({"data", "score", file.string(), "--reward", reward});
    EXPECT_EQ(result.exit_code, 2) << reward;
    EXPECT_THAT(result.err, HasSubstr(hint));
  }
  EXPECT_EQ(run_program({"data", "score", file.string(), "--reward", "exact:answer"}).exit_code, 0);
}

TEST(Hints, StagesThatReadTheSameFileShowIt) {
  const TemporaryFolder folder;
  const Path pairs = folder.path() / "pairs.jsonl", prompts = folder.path() / "prompts.jsonl";
  write(pairs, R"({"prompt": "2+2?", "chosen": "4", "rejected": "5"})"
               "\n");
  write(prompts, R"({"prompt": "2+2?"})"
                 "\n");
  const auto show = [](const Path& file, const std::string& stage) {
    return run_program({"data", "conversations", file.string(), "--tokenizer-type", "ByteTokenizer",
                        "--format", "squad", "--stage", stage});
  };
  for (const char* stage : {"orpo", "cpo", "reward"}) {
    const ProgramResult shown = show(pairs, stage);
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    EXPECT_THAT(shown.out, HasSubstr("1 pair;"));
  }
  const ProgramResult shown = show(prompts, "rloo");
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("1 prompt,"));
  const ProgramResult refused = show(prompts, "sft");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("'primus data conversations --stage grpo'"),
                                 HasSubstr("if other records are good")));
}

TEST(Hints, TheNameOfARunNamesItsFolder) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "output/primus/ada/s1");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"runs", "s1"}, std::vector<std::string>{"report", "s1"},
        std::vector<std::string>{"generate", "s1", "--prompt", "a"}}) {
    const ProgramResult result = run_program(words, {.folder = folder.path().string()});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("did you mean 'output/primus/ada/s1'?"));
  }
}

TEST(Hints, SettingsWithAnotherMeaningThanInAmdPrimusHaveANote) {
  const TemporaryFolder folder;
  const std::string tiny = PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";
  write(folder.path() / "own.yaml",
        "extends: " + tiny + "\nmodules: {pre_trainer: {overrides: {save: null}}}\n");
  const auto plan = [&](const std::string& experiment, const std::vector<std::string>& more) {
    std::vector<std::string> words{"train", "pretrain", "--config", experiment, "--dry-run"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words, {.folder = folder.path().string()});
  };
  EXPECT_THAT(plan("own.yaml", {}).err,
              HasSubstr("note: save is null: checkpoints are written to the run's"));
  EXPECT_THAT(plan(tiny, {"fp4=e2m1", "fp4_recipe=mxfp4", "bf16=true"}).err, HasSubstr("slower than bf16"));
  EXPECT_THAT(plan(tiny, {}).err, AllOf(Not(HasSubstr("save is null")), Not(HasSubstr("fp4"))));
  // A folder of Megatron-LM.
  std::filesystem::create_directories(folder.path() / "theirs/iter_0000010/mp_rank_00");
  write(folder.path() / "theirs/latest_checkpointed_iteration.txt", "10");
  const ProgramResult theirs = plan(tiny, {"load=theirs"});
  EXPECT_EQ(theirs.exit_code, 2);
  EXPECT_THAT(theirs.err, HasSubstr("has checkpoints of Megatron-LM, which Primus does not read"));
}

}  // namespace
}  // namespace primus
