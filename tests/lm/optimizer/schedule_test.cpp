// Compares learning-rate and weight-decay schedules with values computed from Megatron-LM's
// OptimizerParamScheduler.
#include "lm/optimizer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "config/trainer_config.h"

namespace primus {
namespace {

config::TrainerConfig base(const char* style) {
  config::TrainerConfig c;
  c.train_iters = c.lr_decay_iters = 100;
  c.lr = 1e-3;
  c.min_lr = 1e-4;
  c.lr_warmup_iters = 10;
  c.lr_decay_style = style;
  return c;
}

TEST(Schedule, WarmsUpFromZero) {
  const Schedule s(base("cosine"));
  EXPECT_EQ(s.learning_rate(0), 0);  // the first warm-up step has a rate of 0, as in Megatron
  EXPECT_DOUBLE_EQ(s.learning_rate(5), 5e-4);
  EXPECT_DOUBLE_EQ(s.learning_rate(10), 1e-3);
  config::TrainerConfig c = base("cosine");
  c.lr_warmup_init = 2e-4;
  c.lr_warmup_fraction = 0.2;
  EXPECT_DOUBLE_EQ(Schedule(c).learning_rate(0), 2e-4);
  EXPECT_DOUBLE_EQ(Schedule(c).learning_rate(20), 1e-3);
  // The fraction refers to the decay steps, not to the length of the training.
  c.lr_warmup_init = 0;
  c.train_iters = 400;
  EXPECT_DOUBLE_EQ(Schedule(c).learning_rate(10), 5e-4);
  EXPECT_DOUBLE_EQ(Schedule(c).learning_rate(20), 1e-3);
}

// Fine-tuning may have only one or two steps, so every step has a rate above 0.
TEST(Schedule, ARunFromWeightsBeginsWithTheFirstWarmUpStep) {
  config::TrainerConfig c = base("cosine");
  const Schedule s(c, /*from_weights=*/true);
  EXPECT_DOUBLE_EQ(s.learning_rate(0), 1e-3 / 11);
  EXPECT_DOUBLE_EQ(s.learning_rate(5), 1e-3 * 6 / 11);
  EXPECT_DOUBLE_EQ(s.learning_rate(10), 1e-3);
  // One step, as when fine-tuning on few conversations. A twentieth of the step is warm-up.
  c.train_iters = c.lr_decay_iters = 1;
  c.lr_warmup_fraction = 0.05;
  EXPECT_DOUBLE_EQ(Schedule(c, true).learning_rate(0), 1e-3 / 1.05);
  EXPECT_EQ(Schedule(c).learning_rate(0), 0);
  c.lr_warmup_init = 0;  // set explicitly
  EXPECT_EQ(Schedule(c, true).learning_rate(0), 0);
  c.lr_warmup_fraction.reset();
  c.lr_warmup_iters = 0;
  EXPECT_DOUBLE_EQ(Schedule(c, true).learning_rate(0), 1e-3);
}

TEST(Schedule, Shapes) {
  EXPECT_DOUBLE_EQ(Schedule(base("constant")).learning_rate(99), 1e-3);
  EXPECT_DOUBLE_EQ(Schedule(base("linear")).learning_rate(55), 1e-4 + 0.5 * 9e-4);
  EXPECT_NEAR(Schedule(base("cosine")).learning_rate(55), 1e-4 + 0.5 * 9e-4, 1e-18);
  EXPECT_NEAR(Schedule(base("cosine")).learning_rate(100), 1e-4, 1e-18);
  EXPECT_DOUBLE_EQ(Schedule(base("cosine")).learning_rate(101), 1e-4);
  const Schedule root(base("inverse-square-root"));
  EXPECT_DOUBLE_EQ(root.learning_rate(40), 1e-3 * std::sqrt(10.0 / 40.0));
  // The last step of the decay has its regular rate, far above the minimum.
  EXPECT_DOUBLE_EQ(root.learning_rate(100), 1e-3 * std::sqrt(10.0 / 100.0));
  EXPECT_DOUBLE_EQ(root.learning_rate(101), 1e-4);
}

TEST(Schedule, WarmupStableDecay) {
  config::TrainerConfig c = base("WSD");
  c.lr_wsd_decay_iters = 20;
  c.lr_wsd_decay_style = "linear";
  EXPECT_DOUBLE_EQ(Schedule(c).learning_rate(80), 1e-3);
  EXPECT_DOUBLE_EQ(Schedule(c).learning_rate(90), 1e-4 + 0.5 * 9e-4);
  c.lr_wsd_decay_style = "exponential";
  EXPECT_DOUBLE_EQ(Schedule(c).learning_rate(90), 1e-4 + (2 * std::sqrt(0.5) - 1) * 9e-4);
  c.lr_wsd_decay_style = "minus_sqrt";
  EXPECT_DOUBLE_EQ(Schedule(c).learning_rate(85), 1e-4 + 0.5 * 9e-4);
}

TEST(Schedule, WeightDecayMayGrow) {
  config::TrainerConfig c = base("constant");
  c.weight_decay = 0.1;
  EXPECT_DOUBLE_EQ(Schedule(c).weight_decay(50), 0.1);
  c.start_weight_decay = 0.0;
  c.end_weight_decay = 0.2;
  c.weight_decay_incr_style = "linear";
  EXPECT_DOUBLE_EQ(Schedule(c).weight_decay(50), 0.1);
  c.weight_decay_incr_style = "cosine";
  EXPECT_NEAR(Schedule(c).weight_decay(25), 0.2 * 0.5 * (std::cos(0.75 * std::acos(-1.0)) + 1), 1e-15);
}

}  // namespace
}  // namespace primus
