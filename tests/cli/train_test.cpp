// Training from the command line: a few steps of a tiny model on mock data.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/temporary_folder.h"
#include "cli/program.h"
#include "cli/runs.h"

namespace primus {
namespace {

using nlohmann::json;
using test::ProgramResult;
using test::run_program;
using test::TemporaryFolder;
using test::train;
using ::testing::HasSubstr;

TEST(Train, LeavesARunThatOtherCommandsUse) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(train(folder.path(), {"train_iters=4", "save_interval=2"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("done after iteration 4"));
  EXPECT_THAT(result.err, HasSubstr("iteration        4/       4"));
  const Path run = test::run_folder(folder.path());
  EXPECT_EQ(test::losses(run).size(), 4U);
  EXPECT_TRUE(Env::posix().status(run / "checkpoints" / "iter_0000002" / "config.json"));
  EXPECT_TRUE(Env::posix().status(run / "logs" / "pre_trainer" / "rank-0" / "info.log"));

  const ProgramResult text = run_program({"generate", run.string(), "-p", "abc", "-n", "5", "--json"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(json::parse(text.out).at("prompt_tokens"), 3);
  const ProgramResult chat =
      run_program({"chat", run.string(), "-n", "4"}, {.input = "hello\n/clear\nagain\n"});
  EXPECT_EQ(chat.exit_code, 0) << chat.err;
  const ProgramResult info = run_program({"model", "info", run.string(), "--json"});
  EXPECT_EQ(json::parse(info.out).at("layers"), 4);
}

TEST(Train, TheSameCommandContinues) {
  const TemporaryFolder folder;
  const std::vector<std::string> straight = {"train_iters=6", "save_interval=3", "exp_name=straight"};
  ASSERT_EQ(run_program(train(folder.path(), straight)).exit_code, 0);
  const std::vector<std::string> stopping = {"train_iters=6", "save_interval=3", "exp_name=stopping",
                                             "exit_interval=3"};
  ASSERT_EQ(run_program(train(folder.path(), stopping)).exit_code, 0);
  EXPECT_EQ(test::losses(test::run_folder(folder.path(), "stopping")).size(), 3U);
  const std::vector<std::string> going_on = {"train_iters=6", "save_interval=3", "exp_name=stopping"};
  const ProgramResult rest = run_program(train(folder.path(), going_on));
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(test::losses(test::run_folder(folder.path(), "stopping")),
            test::losses(test::run_folder(folder.path(), "straight")));
  EXPECT_EQ(test::final_weights(test::run_folder(folder.path(), "stopping"), 6),
            test::final_weights(test::run_folder(folder.path(), "straight"), 6));
  const ProgramResult nothing = run_program(train(folder.path(), going_on));
  EXPECT_EQ(nothing.exit_code, 0);
  EXPECT_THAT(nothing.out, HasSubstr("nothing left to do"));
}

TEST(Train, ADryRunTouchesNothing) {
  const TemporaryFolder folder;
  auto words = train(folder.path(), {});
  words.emplace_back("--dry-run");
  const ProgramResult result = run_program(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* what : {"parameters", "persistent", "stash", "scratch", "checkpoint", "steps"}) {
    EXPECT_THAT(result.out, HasSubstr(what));
  }
  words.emplace_back("--json");
  const ProgramResult as_json = run_program(words);
  EXPECT_GT(json::parse(as_json.out).at("memory_bytes").at("total").get<double>(), 1e6);
  EXPECT_TRUE(Env::posix().list(folder.path()).empty());
}

TEST(Train, ExportsTheResolvedExperiment) {
  const TemporaryFolder folder;
  auto words = train(folder.path(), {"lr=0.00123", "--dry-run"});
  const std::string file = (folder.path() / "resolved.yaml").string();
  words.insert(words.end(), {"--export-config", file});
  ASSERT_EQ(run_program(words).exit_code, 0);
  const ProgramResult again = run_program({"config", "show", "--config", file});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("0.00123"));
}

TEST(Train, RefusesAnotherFramework) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(train(folder.path(), {"framework=megatron"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("framework"));
}

TEST(Train, BadDataIsNamed) {
  const TemporaryFolder folder;
  write_file(folder.path() / "empty.txt", "");
  for (const auto& [path, said] :
       {std::pair{"empty.txt", "empty.txt"}, std::pair{"missing.txt", "missing.txt"}}) {
    const std::string data = (folder.path() / path).string();
    const ProgramResult result = run_program(train(folder.path(), {"mock_data=false", "data_path=" + data}));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(said));
  }
}

TEST(Train, AWorkspaceThatCannotBeWrittenIsAnError) {
  const ProgramResult result = run_program(train("/proc", {}));
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("/proc"));
}

TEST(Train, ResumesOnlyTheModelThatWasSaved) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_program(train(folder.path(), {"train_iters=1"})).exit_code, 0);
  // The same shapes, and another function.
  const ProgramResult other = run_program(train(folder.path(), {"train_iters=2", "rotary_base=1000"}));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("it was saved by another model: rope_"));
  EXPECT_THAT(other.err, HasSubstr("exp_name"));
  const ProgramResult changed = run_program(train(folder.path(), {"train_iters=2", "seed=5", "lr=2e-3"}));
  EXPECT_EQ(changed.exit_code, 0) << changed.err;
  EXPECT_THAT(changed.err,
              HasSubstr("seed was 1234, and is 5 from here on: the data goes on in another order"));
  EXPECT_THAT(changed.err, HasSubstr("lr was "));
}

TEST(Train, ACheckpointIsLoadedAsAWholeOrNotAtAll) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_program(train(folder.path(), {"train_iters=1"})).exit_code, 0);
  const std::string load = "load=" + (test::run_folder(folder.path()) / "checkpoints").string();
  for (const char* change : {"num_layers=3", "num_attention_heads=3", "norm_epsilon=1e-3"}) {
    for (const char* finetune : {"finetune=true", "finetune=false"}) {
      const ProgramResult result =
          run_program(train(folder.path(), {"train_iters=2", load, change, finetune, "exp_name=other"}));
      EXPECT_EQ(result.exit_code, 2) << change << " " << finetune;
    }
  }
  // A longer context is what a run may start from such weights for.
  EXPECT_EQ(run_program(train(folder.path(), {"train_iters=1", load, "rotary_base=50000", "exp_name=longer"}))
                .exit_code,
            0);
}

TEST(Train, ContinuesWithoutOptimizerState) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_program(train(folder.path(), {"train_iters=1", "no_save_optim=true"})).exit_code, 0);
  const ProgramResult again = run_program(train(folder.path(), {"train_iters=2", "no_save_optim=true"}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("has no optimizer state"));
  EXPECT_EQ(test::losses(test::run_folder(folder.path())).size(), 2U);
}

TEST(Train, NothingLeftToDoChangesNothing) {
  const TemporaryFolder folder;
  const std::vector<std::string> evaluated = {"train_iters=2", "eval_iters=1", "eval_interval=2"};
  const ProgramResult first = run_program(train(folder.path(), evaluated));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Path evaluations = test::run_folder(folder.path()) / "evaluations.jsonl";
  const std::string before = read_file(evaluations);
  std::vector<std::string> as_json = evaluated;
  as_json.push_back("--json");
  const ProgramResult again = run_program(train(folder.path(), as_json));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(read_file(evaluations), before);
  EXPECT_DOUBLE_EQ(json::parse(again.out).at("last_loss").get<double>(),
                   test::losses(test::run_folder(folder.path())).at(2).loss);

  const ProgramResult none = run_program(train(folder.path(), {"train_iters=0", "exp_name=none"}));
  EXPECT_EQ(none.exit_code, 0) << none.err;
}

TEST(Train, AForecastOfAHugeBatchNeedsNoMemory) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(
      train(folder.path(), {"global_batch_size=1000000000", "train_iters=10", "--dry-run", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const ProgramResult small =
      run_program(train(folder.path(), {"global_batch_size=4", "train_iters=10", "--dry-run", "--json"}));
  const json large_step = json::parse(result.out), small_step = json::parse(small.out);
  EXPECT_EQ(large_step.at("memory_bytes"), small_step.at("memory_bytes"));
  // All but the norms' and the update's work grows with the batch.
  EXPECT_NEAR(large_step.at("kernel_flops_per_step").get<double>() /
                  small_step.at("kernel_flops_per_step").get<double>(),
              2.5e8, 2.5e6);
}

TEST(Train, KeepsWhatItLearnedWhenTheDataBreaks) {
  const TemporaryFolder folder;
  write_file(folder.path() / "text.txt", std::string(6400, 'a'));
  const std::string prefix = (folder.path() / "data").string();
  ASSERT_EQ(run_program({"data", "tokenize", "--input", (folder.path() / "text.txt").string(),
                         "--output-prefix", prefix, "--tokenizer-type", "ByteTokenizer"})
                .exit_code,
            0);
  const Path bin = prefix + "_text_document.bin";
  std::string tokens = read_file(bin);
  tokens[tokens.size() / 2] = tokens[tokens.size() / 2 + 1] = '\xff';  // one id beyond every vocabulary
  write_file(bin, tokens);
  const ProgramResult broken =
      run_program(train(folder.path(), {"train_iters=50", "mock_data=false", "vocab_size=300",
                                        "split=100,0,0", "data_path=" + prefix + "_text_document"}));
  EXPECT_EQ(broken.exit_code, 2);
  const Path run = test::run_folder(folder.path());
  const auto done = test::losses(run).size();
  ASSERT_GE(done, 1U) << broken.err;
  EXPECT_LT(done, 50U);
  EXPECT_TRUE(Env::posix().status(run / "checkpoints" / fmt::format("iter_{:07}", done) / "config.json"))
      << broken.err;
}

TEST(Train, RefusesMoreTokensThanCanBeCounted) {
  const TemporaryFolder folder;
  const ProgramResult result =
      run_program(train(folder.path(), {"train_iters=1000000000000", "global_batch_size=1000000"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("cannot be counted"));
}

}  // namespace
}  // namespace primus
