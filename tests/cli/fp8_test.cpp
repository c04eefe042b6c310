// Tests of training in fp8: runs learn as in bf16, resume exactly, and refuse what fp8 does not support.
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/learning.h"
#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

const std::vector<std::string> kFp8 = {"bf16=true", "fp8=hybrid", "fp8_recipe=tensorwise"};
const std::vector<std::string> kDelayed = {"bf16=true", "fp8=hybrid", "fp8_recipe=delayed",
                                           "fp8_amax_history_len=4"};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

ProgramResult train(const TemporaryFolder& folder, const std::string& name,
                    const std::vector<std::string>& more) {
  return run_program(test::train(folder.path(), with({"exp_name=" + name}, more)));
}

TEST(Fp8, LearnsTextAsInBf16) {
  test::Learning learning;
  learning.learn("e4m3", {"fp8=e4m3", "fp8_recipe=tensorwise"});
  learning.learn("hybrid", {"fp8=hybrid", "fp8_recipe=tensorwise"});
  learning.learn("delayed", {"fp8=hybrid", "fp8_recipe=delayed"});
  learning.learn("recent",
                 {"fp8=e4m3", "fp8_recipe=delayed", "fp8_amax_compute_algo=most_recent", "fp8_margin=1"});
  learning.expect_near_bf16(0);
}

void expect_goes_on(const std::vector<std::string>& fp8) {
  const TemporaryFolder folder;
  const std::vector<std::string> six = with({"train_iters=6", "save_interval=3"}, fp8);
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

TEST(Fp8, AResumedRunEqualsAnUninterruptedRun) { expect_goes_on(kFp8); }

TEST(Fp8, AResumedRunWithDelayedScalesEqualsAnUninterruptedRun) { expect_goes_on(kDelayed); }

// Checkpoints of bf16 runs, and checkpoints without optimizer states, have no scales. The log reports the
// missing scales.
TEST(Fp8, ACheckpointWithoutScalesIsReported) {
  const TemporaryFolder folder;
  const std::vector<std::string> four = {"train_iters=4", "save_interval=2", "bf16=true"};
  for (const auto& [name, before, after, said] :
       std::vector<std::tuple<std::string, std::vector<std::string>, std::vector<std::string>, std::string>>{
           {"from-bf16", {}, {}, "has no fp8 scales"},
           {"not-saved", with(kDelayed, {"no_save_optim=true"}), {}, "has no fp8 scales"},
           {"not-loaded", kDelayed, {"no_load_optim=true"}, "the fp8 scales start at 1"},
           {"whole", kDelayed, {}, ""}}) {
    const ProgramResult first = train(folder, name, with(with(four, before), {"exit_interval=2"}));
    ASSERT_EQ(first.exit_code, 0) << first.err;
    const ProgramResult second = train(folder, name, with(with(four, kDelayed), after));
    ASSERT_EQ(second.exit_code, 0) << second.err;
    if (said.empty()) {
      EXPECT_THAT(second.out + second.err, Not(HasSubstr("fp8 scales"))) << name;
    } else {
      EXPECT_THAT(second.out + second.err, HasSubstr(said)) << name;
    }
  }
}

// Evaluation runs in fp8. Samples are not generated in fp8, because they are generated token by token.
TEST(Fp8, ARunEvaluatesAndWritesSamples) {
  const TemporaryFolder folder;
  for (const auto& [name, recipe] : {std::pair("tensorwise", kFp8), {"delayed", kDelayed}}) {
    const ProgramResult result = train(folder, name,
                                       with({"train_iters=2", "eval_iters=1", "eval_interval=1",
                                             "sample_interval=1", "sample_prompt=The", "sample_tokens=5"},
                                            recipe));
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

TEST(Fp8, ADryRunOfAnyWorldNeedsNoHardware) {
  const TemporaryFolder folder;
  for (const auto& recipe : {kFp8, kDelayed}) {
    const ProgramResult result =
        train(folder, "run", with({"--dry-run", "--world", "4", "global_batch_size=8"}, recipe));
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

TEST(Fp8, UnsupportedModelsAreRefusedByTheirKey) {
  const TemporaryFolder folder;
  for (const auto& [words, cause, next] :
       std::vector<std::tuple<std::vector<std::string>, std::string, std::string>>{
           {{"bf16=true", "fp8=e4m3", "fp8_recipe=blockwise"},
            "fp8_recipe: blockwise",
            "fp8_recipe: delayed"},
           {with(kDelayed, {"fp8_amax_compute_algo=mean"}), "it must be one of most_recent, max", "hint:"},
           {with(kDelayed, {"fp8_amax_history_len=0"}), "fp8_amax_history_len", "hint:"},
           {with(kDelayed, {"fp8_margin=17"}), "fp8_margin", "hint:"},
           {{"bf16=false", "fp8=e4m3", "fp8_recipe=tensorwise"}, "fp8: e4m3 needs bf16: true", "fp8: null"},
           {with(kFp8, {"seq_length=20", "micro_batch_size=2"}), "not a multiple of 16", "fp8: null"},
           {with(kFp8, {"ffn_hidden_size=500"}), "multiples of 16", "bf16"},
           {{"bf16=true", "fp8=e5m2"}, "it must be one of e4m3, hybrid", "hint:"}}) {
    const ProgramResult result = train(folder, "run", words);
    EXPECT_EQ(result.exit_code, 2) << cause << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr(cause), HasSubstr(next)));
  }
}

// Experiments of AMD Primus often set only `fp8`. The recipe is then delayed scaling, the default of its
// presets and of Megatron-LM.
TEST(Fp8, DelayedScalesAreTheDefault) {
  const TemporaryFolder folder;
  const std::vector<std::string> words{"train_iters=3", "bf16=true", "fp8=hybrid"};
  const auto losses_with = [&](const std::string& name, const std::vector<std::string>& more) {
    const ProgramResult result = train(folder, name, with(words, more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return test::losses(test::run_folder(folder.path(), name));
  };
  const auto left_out = losses_with("left-out", {});
  EXPECT_EQ(left_out, losses_with("delayed", {"fp8_recipe=delayed", "fp8_amax_history_len=1024",
                                              "fp8_amax_compute_algo=max", "fp8_margin=0"}));
  EXPECT_NE(left_out, losses_with("tensorwise", {"fp8_recipe=tensorwise"}));
}

TEST(Fp8, ExpertsStayInBf16WithANote) {
  const TemporaryFolder folder;
  const std::vector<std::string> experts = {"train_iters=1", "model_type=mixtral", "num_experts=4",
                                            "moe_router_topk=2"};
  const ProgramResult result = train(folder, "run", with(experts, kFp8));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out + result.err, HasSubstr("routed experts stay in bf16"));
  const ProgramResult plain = train(folder, "plain", with(experts, {"bf16=true"}));
  EXPECT_THAT(plain.out + plain.err, Not(HasSubstr("routed experts")));
}

}  // namespace
}  // namespace primus
