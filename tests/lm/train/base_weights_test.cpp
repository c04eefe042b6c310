// Tests that a run resumes only with the weights from which it started.
#include "lm/train/settings/base_weights.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "whole_runs.h"

namespace primus::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class BaseWeights : public WholeRuns {
 protected:
  // Copies a model folder without a manifest, as other programs write it.
  Path plain_copy(const Path& checkpoint, const std::string& name) const {
    const Path folder = folder_.path() / name;
    std::filesystem::create_directories(folder);
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(checkpoint / file, folder / file,
                                 std::filesystem::copy_options::overwrite_existing);
    }
    return folder;
  }
};

TEST_F(BaseWeights, DifferentWeightsAreRefused) {
  const Path one = run("one", {"seed=1"}), other = run("other", {"seed=2"});
  run("tuned", {load(one), "finetune=true"});
  EXPECT_THAT(refusal("tuned", {load(other), "finetune=true", "train_iters=6"}),
              AllOf(HasSubstr("was started from the weights of '" + one.string() + "'"),
                    HasSubstr(other.string()), HasSubstr("exp_name=NAME")));
  // Other weights are refused even if the run has no steps left.
  EXPECT_THAT(refusal("tuned", {load(other), "finetune=true"}), HasSubstr("was started from the weights of"));
  run("tuned", {load(one), "finetune=true", "train_iters=6"});
}

TEST_F(BaseWeights, AreComparedByContent) {
  const Path one = run("one", {"seed=1"}), other = run("other", {"seed=2"});
  const Path folder = plain_copy(one, "model"), same = plain_copy(one, "same");
  run("tuned", {load(folder)});
  run("tuned", {load(same), "train_iters=6"});
  plain_copy(other, "model");
  EXPECT_THAT(refusal("tuned", {load(folder), "train_iters=8"}), HasSubstr("have changed since then"));
  // The run resumes from its own checkpoint even if the folder of `load` no longer exists.
  remove_tree(folder);
  run("tuned", {load(folder), "train_iters=8"});
  EXPECT_THAT(refusal("tuned", {load(folder_.path() / "typo"), "train_iters=10"}),
              AllOf(HasSubstr("typo' does not exist, and"), HasSubstr("load=" + folder.string())));
}

// A run may start from a checkpoint of another run with its optimizer states.
TEST_F(BaseWeights, OfAnotherRunAreNotCalledOnesOfTheRunItself) {
  const Path one = run("one", {});
  run("next", {load(one), "finetune=false", "train_iters=6"});
  EXPECT_THAT(log_of("next"), HasSubstr("continuing from " + one.string() + " (iteration 4)"));
  EXPECT_THAT(log_of("next"), Not(HasSubstr("a resumed run ignores it")));
  EXPECT_THAT(log_of("next"), Not(HasSubstr("the run's own checkpoint")));
}

TEST_F(BaseWeights, AStartWithNewStatesNotesNoLoadOptim) {
  const Path one = run("one", {"no_load_optim=true"});
  EXPECT_THAT(log_of("one"), HasSubstr("no_load_optim has no effect in this start"));
  run("next", {load(one), "finetune=false", "no_load_optim=true", "train_iters=6"});
  EXPECT_THAT(log_of("next"), Not(HasSubstr("no_load_optim has no effect")));
}

TEST_F(BaseWeights, AreNotLoadedIntoARunThatHasACheckpoint) {
  const Path one = run("one", {"seed=1"});
  const Path plain = run("plain", {"seed=2"});
  EXPECT_THAT(refusal("plain", {load(one), "seed=2", "train_iters=6"}),
              HasSubstr("was started from random weights"));
  // Scripts for Megatron set `load` to the run's own checkpoints, which is accepted.
  run("plain", {load(plain.parent_path()), "seed=2", "train_iters=6"});
}

TEST_F(BaseWeights, ALaterCheckpointOfTheRunIsOnlyReported) {
  const Path one = run("one", {});
  run("tuned", {load(one.parent_path()), "finetune=true"});
  run("one", {"train_iters=6"});
  run("tuned", {load(one.parent_path()), "finetune=true", "train_iters=6"});
}

}  // namespace
}  // namespace primus::test
