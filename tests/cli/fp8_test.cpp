// Runs in fp8: they learn as in bf16, go on as if nothing had happened, and say what they cannot do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "base/temporary_folder.h"
#include "cli/program.h"
#include "cli/runs.h"

namespace primus {
namespace {

using test::ProgramResult;
using test::run_program;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::string> kFp8 = {"bf16=true", "fp8=hybrid", "fp8_recipe=tensorwise"};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

ProgramResult train(const TemporaryFolder& folder, const std::string& name,
                    const std::vector<std::string>& more) {
  return run_program(test::train(folder.path(), with({"exp_name=" + name}, more)));
}

// 200 steps of a small Llama on English text.
TEST(Fp8, TextIsLearntAsInBf16) {
  const TemporaryFolder folder;
  const Path text = folder.path() / "text.md";  // what is made of it lies beside it
  std::filesystem::copy_file(PRIMUS_SOURCE_DIR "/docs/design.md", text);
  const auto last_loss = [&](const std::string& name, const std::vector<std::string>& more) {
    const ProgramResult result = train(
        folder, name, with({"bf16=true", "data_path=" + text.string(), "train_iters=200", "lr=0.003"}, more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto steps = test::losses(test::run_folder(folder.path(), name));
    EXPECT_EQ(steps.size(), 200U);
    // The mean of the last twenty: one batch is not the other.
    double sum = 0;
    for (int i = 181; i <= 200; ++i) sum += steps.at(i).loss / 20;
    EXPECT_LT(sum, 0.6 * steps.at(1).loss);
    return sum;
  };
  const double bf16 = last_loss("bf16", {});
  for (const std::string format : {"e4m3", "hybrid"}) {
    const double fp8 = last_loss(format, {"fp8=" + format, "fp8_recipe=tensorwise"});
    EXPECT_LE(fp8, 1.02 * bf16) << format;
    EXPECT_NE(fp8, bf16) << format;
  }
}

TEST(Fp8, ARunThatGoesOnEqualsOneThatWasNotInterrupted) {
  const TemporaryFolder folder;
  const std::vector<std::string> six = with({"train_iters=6", "save_interval=3"}, kFp8);
  const ProgramResult whole = train(folder, "whole", six);
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  for (const char* part : {"exit_interval=3", "exit_interval=6"}) {
    const ProgramResult result = train(folder, "parts", with(six, {part}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  const Path parts = test::run_folder(folder.path(), "parts"), all = test::run_folder(folder.path(), "whole");
  EXPECT_EQ(test::losses(parts), test::losses(all));
  EXPECT_TRUE(test::final_weights(parts, 6) == test::final_weights(all, 6));
}

// Evaluation is in fp8, too; texts that a run writes are not, because they come token by token.
TEST(Fp8, ARunEvaluatesAndWritesSamples) {
  const TemporaryFolder folder;
  const ProgramResult result = train(folder, "run",
                                     with({"train_iters=2", "eval_iters=1", "eval_interval=1",
                                           "sample_interval=1", "sample_prompt=The", "sample_tokens=5"},
                                          kFp8));
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Fp8, ADryRunOfAnyWorldNeedsNoHardware) {
  const TemporaryFolder folder;
  const ProgramResult result =
      train(folder, "run", with({"--dry-run", "--world", "4", "global_batch_size=8"}, kFp8));
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Fp8, WhatCannotBeInFp8IsRefusedByItsKey) {
  const TemporaryFolder folder;
  for (const auto& [words, cause, next] :
       std::vector<std::tuple<std::vector<std::string>, std::string, std::string>>{
           {{"bf16=true", "fp8=hybrid", "fp8_recipe=delayed"},
            "fp8_recipe: delayed",
            "fp8_recipe: tensorwise"},
           {{"bf16=true", "fp8=e4m3", "fp8_recipe=blockwise"},
            "fp8_recipe: blockwise",
            "fp8_recipe: tensorwise"},
           {{"bf16=false", "fp8=e4m3", "fp8_recipe=tensorwise"}, "fp8: e4m3 needs bf16: true", "fp8: null"},
           {with(kFp8, {"seq_length=20", "micro_batch_size=2"}), "no multiple of 16", "fp8: null"},
           {with(kFp8, {"ffn_hidden_size=500"}), "multiples of 16", "bf16"},
           {{"bf16=true", "fp8=e5m2"}, "it must be one of e4m3, hybrid", "hint:"}}) {
    const ProgramResult result = train(folder, "run", words);
    EXPECT_EQ(result.exit_code, 2) << cause << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr(cause), HasSubstr(next)));
  }
}

// What experiments of AMD's Primus say: fp8 alone.
TEST(Fp8, WhereNobodyChoosesARecipeItIsTensorwiseAndANoteSaysSo) {
  const TemporaryFolder folder;
  const std::vector<std::string> words{"train_iters=2", "bf16=true", "fp8=hybrid"};
  const ProgramResult result = train(folder, "left-out", words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out + result.err, HasSubstr("fp8_recipe: tensorwise"));
  const ProgramResult chosen = train(folder, "chosen", with(words, {"fp8_recipe=tensorwise"}));
  EXPECT_THAT(chosen.out + chosen.err, Not(HasSubstr("fp8_recipe: tensorwise")));
}

TEST(Fp8, ExpertsStayInBf16AsANoteSays) {
  const TemporaryFolder folder;
  const std::vector<std::string> experts = {"train_iters=1", "model_type=mixtral", "num_experts=4",
                                            "moe_router_topk=2"};
  const ProgramResult result = train(folder, "run", with(experts, kFp8));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out + result.err, HasSubstr("routed experts are multiplied in bf16"));
  const ProgramResult plain = train(folder, "plain", with(experts, {"bf16=true"}));
  EXPECT_THAT(plain.out + plain.err, Not(HasSubstr("routed experts")));
}

}  // namespace
}  // namespace primus
