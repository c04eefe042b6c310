// Tests how experiment keys become the settings of reinforcement learning.
#include "lm/train/objectives/keys/reinforcement_keys.h"

#include <gtest/gtest.h>

#include "config/trainer_config.h"

namespace primus {
namespace {

// The position in the prompts depends on the number of steps that learn from the same answers.
TEST(ReinforcementKeys, OnlyStagesWithAValueModelHaveMiniBatches) {
  config::TrainerConfig c;
  c.seq_length = 64;
  c.max_completion_length = 8;
  c.num_iterations = 3;
  c.num_mini_batches = 2;
  for (const char* stage : {"grpo", "rloo"}) {
    c.stage = stage;
    EXPECT_EQ(prompt_options_of(c).num_iterations, 3) << stage;
  }
  c.stage = "ppo";
  EXPECT_EQ(prompt_options_of(c).num_iterations, 6);
}

}  // namespace
}  // namespace primus
