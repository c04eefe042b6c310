// Tests of successive runs of a tiny model: which checkpoints belong to a run, and what can be resumed or
// loaded.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/files/file.h"
#include "cli/program_names.h"
#include "cli/runs.h"
#include "lm/events/run_folder.h"

namespace primus {
namespace {

using test::train;

// Trains a small mixture of experts.
std::vector<std::string> mixture(const Path& workspace, const std::vector<std::string>& more) {
  std::vector<std::string> words =
      train(workspace, {"model_type=mixtral", "num_experts=4", "ffn_hidden_size=64"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A text of 280 bytes has 4 samples of 64 bytes.
TEST(LittleText, ManyPassesOverItAreNamed) {
  const TemporaryFolder folder;
  const Path text = folder.path() / "small.txt";
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "Line " + std::to_string(100 + i) + " of a very small text.\n";
  write_file(text, lines.substr(0, 280));
  const auto trained = [&](const std::string& name, int steps) {
    return run_program(train(
        folder.path(),
        {"mock_data=false", "data_path=" + text.string(), "split=100,0,0", "tokenizer_type=ByteTokenizer",
         "vocab_size=null", "exp_name=" + name, "eval_iters=0", "train_iters=" + std::to_string(steps)}));
  };
  const ProgramResult often = trained("often", 42);
  ASSERT_EQ(often.exit_code, 0) << often.err;
  EXPECT_THAT(often.err, testing::ContainsRegex("42 steps are about 4[0-9] passes over the training data"));
  const ProgramResult seldom = trained("seldom", 5);
  ASSERT_EQ(seldom.exit_code, 0) << seldom.err;
  EXPECT_THAT(seldom.err, Not(HasSubstr("passes over the training data")));
}

TEST(SeveralRuns, ARunUsesItsOwnCheckpointsWhateverOthersSave) {
  const TemporaryFolder folder;
  const std::string shared = (folder.path() / "shared").string();
  const auto info = [&](const std::string& name) {
    return run_program({"model", "info", test::run_folder(folder.path(), name).string()});
  };
  const auto run = [&](const std::vector<std::string>& more) {
    return run_program(train(folder.path(), more));
  };
  ASSERT_EQ(run({"train_iters=2", "exp_name=own"}).exit_code, 0);
  const std::string recorded = read_file(test::run_folder(folder.path(), "own") / "experiment.yaml");
  ASSERT_EQ(run({"train_iters=4", "exp_name=other", "save=" + shared}).exit_code, 0);
  EXPECT_THAT(info("other").out, HasSubstr("shared/iter_0000004"));
  {
    const RunLock other_process(shared);
    const ProgramResult refused = run({"train_iters=6", "exp_name=own", "save=" + shared});
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr("save this run to another folder (save)"));
  }
  EXPECT_EQ(read_file(test::run_folder(folder.path(), "own") / "experiment.yaml"), recorded);
  EXPECT_THAT(info("own").out, HasSubstr("own/checkpoints/iter_0000002"));

  // Runs `own` and `other` save into one folder. The newest checkpoint there belongs to `own`, so `other` is
  // refused.
  ASSERT_EQ(run({"train_iters=6", "exp_name=own", "save=" + shared}).exit_code, 0);
  EXPECT_THAT(info("own").out, HasSubstr("own/checkpoints/iter_0000002"));
  const ProgramResult overtaken = info("other");
  EXPECT_EQ(overtaken.exit_code, 2);
  EXPECT_THAT(overtaken.err,
              AllOf(HasSubstr("another experiment"), HasSubstr("w/u/own"), HasSubstr("iter_0000006")));
  // The folder already has step 6, so `third` trains nothing and has no checkpoint of its own.
  ASSERT_EQ(run({"train_iters=6", "exp_name=third", "save=" + shared}).exit_code, 0);
  EXPECT_EQ(info("third").exit_code, 2);

  remove_tree(shared);
  const ProgramResult gone = info("other");
  EXPECT_EQ(gone.exit_code, 2);
  EXPECT_THAT(gone.err, HasSubstr("saves to '" + shared + "'"));
}

TEST(SeveralRuns, ResumesAMixtureWithAnotherLossAndNotWithOtherExperts) {
  const TemporaryFolder folder;
  const ProgramResult first = run_program(mixture(
      folder.path(), {"train_iters=1", "moe_aux_loss_coeff=0.01", "moe_token_dispatcher_type=allgather",
                      "moe_expert_capacity_margin=0.37", "overlap_grad_reduce=false"}));
  ASSERT_EQ(first.exit_code, 0);
  EXPECT_THAT(first.err, HasSubstr("with one rank, these settings have no effect: overlap_grad_reduce, "
                                   "moe_token_dispatcher_type, moe_expert_capacity_margin"));
  const ProgramResult same =
      run_program(mixture(folder.path(), {"train_iters=2", "moe_aux_loss_coeff=0.01"}));
  EXPECT_EQ(same.exit_code, 0) << same.err;
  const ProgramResult other =
      run_program(mixture(folder.path(), {"train_iters=3", "moe_aux_loss_coeff=0.02"}));
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.err, HasSubstr("moe_aux_loss_coeff was 0.01, and is 0.02 from here on"));
  const ProgramResult refused = run_program(mixture(folder.path(), {"train_iters=4", "moe_router_topk=1"}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("was saved with num_experts_per_tok 2, but the experiment has 1"));
  EXPECT_THAT(refused.err, HasSubstr("restore the setting"));
  // The hint does not suggest `load`: `load` would refuse these weights, too.
  EXPECT_THAT(refused.err, Not(HasSubstr("load:")));
  const std::string load =
      "load=" + (test::run_folder(folder.path()) / "checkpoints" / "iter_0000003").string();
  EXPECT_EQ(
      run_program(mixture(folder.path(), {"train_iters=1", "moe_router_topk=1", load, "exp_name=other"}))
          .exit_code,
      2);
}

// `load` may name a folder of checkpoints. The newest intact checkpoint is loaded. Settings are checked
// against this checkpoint, as against any model folder.
TEST(SeveralRuns, LoadsTheNewestValidCheckpoint) {
  const TemporaryFolder folder;
  ASSERT_EQ(
      run_program(train(folder.path(), {"train_iters=3", "save_interval=1", "rotary_base=5000"})).exit_code,
      0);
  const Path root = test::run_folder(folder.path()) / "checkpoints";
  const std::string load = "load=" + root.string();
  const auto start = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"train_iters=4", "exp_name=other", load});
    return run_program(train(folder.path(), more));
  };
  // The weights' rotary_base replaces the preset's. A contradicting setting of the user is refused. The error
  // names the places of the two values.
  const ProgramResult contradiction = start({"norm_epsilon=0.5"});
  EXPECT_EQ(contradiction.exit_code, 2);
  EXPECT_THAT(contradiction.err,
              HasSubstr("norm_epsilon is 0.5, but " + (root / "iter_0000003/config.json").string()));
  EXPECT_THAT(contradiction.err, HasSubstr("\n  | norm_epsilon=0.5\n"));
  EXPECT_EQ(start({"norm_epsilon=0.5", "--dry-run"}).exit_code, 2);
  // If the newest checkpoint is damaged, the one before it is loaded.
  const Path newest = root / "iter_0000003" / "model.safetensors";
  std::string bytes = read_file(newest);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(newest, bytes);
  const ProgramResult older = start({});
  ASSERT_EQ(older.exit_code, 0) << older.err;
  EXPECT_THAT(older.err, HasSubstr("damaged checkpoint skipped: iter_0000003"));
  // The run has a warning of it, which all views of runs show.
  const std::string other = test::run_folder(folder.path(), "other").string();
  for (const char* command : {"runs", "postmortem", "report"}) {
    const ProgramResult shown = command == std::string("report") ? run_program({command, other, "--json"})
                                                                 : run_program({command, other});
    EXPECT_THAT(shown.out, HasSubstr("damaged checkpoint skipped: iter_0000003")) << command;
  }
  EXPECT_THAT(older.err, HasSubstr("weights loaded from " + (root / "iter_0000002").string() + "\n"));
  const json config = json::parse(
      read_file(test::run_folder(folder.path(), "other") / "checkpoints/iter_0000004/config.json"));
  EXPECT_EQ(config.at("rope_theta"), 5000.0);
}

}  // namespace
}  // namespace primus
