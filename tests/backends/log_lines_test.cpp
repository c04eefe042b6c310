// Tests of reading other frameworks' log lines as records.
#include "backends/log_lines.h"

#include <gtest/gtest.h>

#include <cmath>

namespace primus::backends {
namespace {

constexpr LoggedRun kRun{.train_iters = 100, .global_batch_size = 8, .tokens_per_sample = 1024, .ranks = 2};

TEST(LogLines, Megatron) {
  LogReader reader("megatron", kRun);
  EXPECT_FALSE(reader.iteration("training ..."));
  const auto record = reader.iteration(
      " [2026-01-01 12:00:00.000000] iteration       10/     200 | consumed samples:           80 | elapsed "
      "time per "
      "iteration (ms): 500.0 | throughput per GPU (TFLOP/s/GPU): 12.5 | learning rate: 1.000000E-05 | global "
      "batch size:     "
      "8 | lm loss: 1.083412E+01 | loss scale: 1.0 | grad norm: 2.113 | num zeros: 3 | number of skipped "
      "iterations:   1 | "
      "number of nan iterations:   0 |");
  ASSERT_TRUE(record);
  EXPECT_EQ(record->iteration, 10);
  EXPECT_EQ(record->train_iters, 200);
  EXPECT_EQ(record->consumed_samples, 80);
  EXPECT_DOUBLE_EQ(record->lm_loss, 10.83412);
  EXPECT_DOUBLE_EQ(record->learning_rate, 1e-5);
  EXPECT_DOUBLE_EQ(*record->grad_norm, 2.113);
  EXPECT_EQ(*record->num_zeros, 3);
  EXPECT_EQ(record->skipped_iterations, 1);
  EXPECT_DOUBLE_EQ(record->throughput.now.flops_per_second, 12.5e12);
  EXPECT_DOUBLE_EQ(record->throughput.now.tokens_per_second, 8 * 1024 / 0.5 / 2);
  // A repeated line of a step gives no second record.
  EXPECT_FALSE(reader.iteration(" iteration 10/ 200 | consumed samples: 80 | lm loss: 1.0E+01 |"));
  const auto evaluation = reader.evaluation(
      " validation loss at iteration 10 | lm loss value: 9.500000E+00 | lm loss PPL: 1.335973E+04 | ");
  ASSERT_TRUE(evaluation);
  EXPECT_EQ(evaluation->iteration, 10);
  EXPECT_DOUBLE_EQ(evaluation->lm_loss, 9.5);
}

// Lines of a real run. Its steps 1 to 3 took 637.7, 564.3 and 590.0 ms, with losses of 5.718631, 5.670721 and
// 4.604446; the second line prints means over two steps.
TEST(LogLines, MegatronsSecondLineIsTheMeanOfTwoSteps) {
  const auto line = [](int step, const char* time, const char* loss) {
    return " [2026-11-22 18:24:53.1] iteration        " + std::to_string(step) +
           "/      20 | consumed samples:           " + std::to_string(16 * step) +
           " | elapsed time per iteration (ms): " + time +
           " | throughput per GPU (TFLOP/s/GPU): 10.0 | learning rate: 7.500000E-04 | global batch size:    "
           "16 | lm "
           "loss: " +
           loss +
           " | loss scale: 1.0 | grad norm: 8.522 | number of skipped iterations:   0 | number of nan "
           "iterations:  "
           " 0 |";
  };
  LoggedRun run = kRun;
  run.second_line_is_mean = true;
  LogReader reader("megatron", run);
  EXPECT_DOUBLE_EQ(reader.iteration(line(1, "637.7", "5.718631E+00"))->lm_loss, 5.718631);
  const auto second = reader.iteration(line(2, "601.0", "5.694676E+00"));
  EXPECT_NEAR(second->lm_loss, 5.670721, 1e-9);
  EXPECT_NEAR(second->throughput.now.seconds_per_iteration, 0.5643, 1e-9);
  EXPECT_NEAR(second->throughput.now.flops_per_second, 10e12 * 601.0 / 564.3, 1e3);
  EXPECT_DOUBLE_EQ(reader.iteration(line(3, "590.0", "4.604446E+00"))->lm_loss, 4.604446);
  // If a line is printed every ten steps, the second line contains the mean of ten steps, and is kept
  // unchanged.
  LogReader tens("megatron", run);
  tens.iteration(line(1, "637.7", "5.718631E+00"));
  EXPECT_DOUBLE_EQ(tens.iteration(line(10, "601.0", "3.106846E+00"))->lm_loss, 3.106846);
  LogReader plain("megatron", kRun);
  plain.iteration(line(1, "637.7", "5.718631E+00"));
  EXPECT_DOUBLE_EQ(plain.iteration(line(2, "601.0", "5.694676E+00"))->lm_loss, 5.694676);
}

TEST(LogLines, TorchTitanInColors) {
  LogReader reader("torchtitan", kRun);
  const auto record = reader.iteration(
      "[rank0]:[titan] 2026-01-01 - root - INFO - \x1b[31mstep: 20  \x1b[32mloss:  8.04887  "
      "\x1b[38;2;180;60;0mgrad_norm:  "
      "1.4012  \x1b[36mmemory: 48.87GiB(51.44%)  \x1b[34mtps: 4,376  \x1b[36mtflops: 25.10  \x1b[35mmfu: "
      "8.05%\x1b[39m");
  ASSERT_TRUE(record);
  EXPECT_EQ(record->iteration, 20);
  EXPECT_DOUBLE_EQ(record->lm_loss, 8.04887);
  EXPECT_DOUBLE_EQ(*record->grad_norm, 1.4012);
  EXPECT_DOUBLE_EQ(record->throughput.now.tokens_per_second, 4376);
  EXPECT_DOUBLE_EQ(record->throughput.now.seconds_per_iteration, 8 * 1024 / 4376.0 / 2);
  EXPECT_NEAR(*record->throughput.now.mfu, 0.0805, 1e-12);
  EXPECT_NEAR(record->memory->used, 48.87 * 1073741824.0, 1);
  EXPECT_EQ(record->consumed_samples, 160);
  EXPECT_FALSE(reader.iteration("validate step: 30  loss: 7.5  memory: 1.00GiB(1.00%)  tps: 10"));
  EXPECT_EQ(reader.evaluation("validate step: 30  loss: 7.5000  memory: 1.00GiB(1.00%)  tps: 10")->iteration,
            30);
}

TEST(LogLines, MaxTextCountsFromZero) {
  LogReader reader("maxtext", kRun);
  const auto record = reader.iteration(
      "completed step: 0, seconds: 2.000, TFLOP/s/device: 210.100, Tokens/s/device: 8000.000, total_weights: "
      "65536, "
      "loss: 9.100, lm_loss: 9.000, perplexity: 8103.084");
  ASSERT_TRUE(record);
  EXPECT_EQ(record->iteration, 1);
  EXPECT_DOUBLE_EQ(record->lm_loss, 9.0);
  EXPECT_DOUBLE_EQ(record->throughput.now.seconds_per_iteration, 2);
  EXPECT_DOUBLE_EQ(*record->throughput.eta, 198);
}

TEST(LogLines, HostileLinesAreNoSteps) {
  for (const char* framework : {"megatron", "torchtitan", "maxtext"}) {
    LogReader reader(framework, kRun);
    for (const std::string& line :
         {std::string("iteration 99999999999999999999/1 | consumed samples: x | lm loss: 1 |"),
          std::string("step: loss: tps:"), std::string("completed step: -5, seconds: nan"),
          std::string("\x1b["), std::string(100000, 'a'), std::string("step: 1e400  loss: 1 tps: 2")}) {
      EXPECT_FALSE(reader.iteration(line)) << framework << ": " << line.substr(0, 60);
    }
  }
}

}  // namespace
}  // namespace primus::backends
