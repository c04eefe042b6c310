// Tests of the hints for words of other programs: each word has exactly one hint. tests/cli/words_test.cpp
// tests that the commands in hints exist.
#include "config/loading/elsewhere.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "config/readers.h"
#include "support.h"

namespace primus::config {
namespace {

using ::testing::HasSubstr;

TEST(Elsewhere, EveryWordHasOneAnswer) {
  std::map<std::string_view, int> times;
  for (const std::string_view word : words_from_elsewhere()) ++times[word];
  for (const auto& [word, count] : times) {
    EXPECT_EQ(count, 1) << word;
    ASSERT_TRUE(answer_for(word)) << word;
  }
  for (const char* word :
       {"serve",     "dpo",        "grpo",      "sft",        "finetune",   "fine-tune", "gguf",
        "hellaswag", "convert",    "export",    "tail",       "status",     "sweep",     "compare",
        "download",  "upload",     "quantize",  "lora",       "rlhf",       "ppo",       "evaluate",
        "lm_eval",   "perplexity", "tokenize",  "resume",     "checkpoint", "ps",        "list",
        "cancel",    "kill",       "attach",    "projection", "agents",     "torchrun",  "accelerate",
        "webui",     "api",        "server",    "orpo",       "kto",        "merge",     "fine_tune",
        "qlora",     "mmlu",       "inference", "deploy",     "ollama",     "vllm",      "wandb",
        "push",      "resume",     "hub",       "FineTune",   "--serve",    "gkd",       "pruning"})
    EXPECT_TRUE(answer_for(word)) << word;
  for (const char* word :
       {"", "pretrain", "posttrain", "chat", "generate", "runs", "report", "stop", "xyzzy", " ", "ser ve"})
    EXPECT_FALSE(answer_for(word)) << word;
}

std::string error_of(const std::string& settings, const std::vector<std::string>& overrides = {}) {
  try {
    load_text(experiment_text(settings), overrides);
  } catch (const Error& error) {
    return error.render();
  }
  return "no error";
}

TEST(Elsewhere, StagesAndFrameworksGetAnAnswer) {
  EXPECT_THAT(error_of("      stage: rlhf\n"), HasSubstr("'primus train ppo load=MODEL"));
  EXPECT_THAT(error_of("      stage: dapo\n"), HasSubstr("'primus train grpo"));
  EXPECT_THAT(error_of("      stage: gkd\n"), HasSubstr("distillation_on_policy_share=1"));
  EXPECT_THAT(error_of("      stage: finetune\n"), HasSubstr("'primus train posttrain"));
  EXPECT_THAT(error_of("      stage: pretrian\n"), HasSubstr("did you mean 'pretrain'?"));
  EXPECT_THAT(error_of("", {"--framework", "unsloth"}), HasSubstr("'primus train posttrain' fine-tunes"));
  EXPECT_THAT(error_of("", {"--framework", "deepspeed"}), HasSubstr("Primus starts the ranks itself"));
  EXPECT_THAT(error_of("", {"--framework", "megatorn"}), HasSubstr("did you mean 'megatron'?"));
  EXPECT_THAT(error_of("", {"lora_rank=8"}), HasSubstr("did you mean 'lora'?"));
}

}  // namespace
}  // namespace primus::config
