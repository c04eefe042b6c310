// Tests the live view of a run in a terminal.
#include "lm/events/live_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/text/display_width.h"

namespace primus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

IterationRecord record(std::int64_t iteration, double loss) {
  IterationRecord r{.iteration = iteration, .train_iters = 1000, .learning_rate = 1.2e-3, .lm_loss = loss};
  r.grad_norm = 0.71;
  r.memory = DeviceMemory{.label = "cpu", .used = 1.3e9, .total = 25e9};
  r.throughput.now = {.seconds_per_iteration = 1.21,
                      .tokens_per_second = 10800,
                      .flops_per_second = 1e9,
                      .mfu = 0.413,
                      .data_wait_share = 0.004};
  r.throughput.eta = 192;
  return r;
}

LiveState running() {
  LiveState s;
  s.name = "pretrain";
  s.facts = {.folder = "output/primus/root/pretrain",
             .description = "llama, 12.3M parameters",
             .first_iteration = 0,
             .train_iters = 1000};
  for (int i = 0; i < 420; ++i) s.losses.add(9.0 - 0.01 * i);
  s.last = record(420, s.losses.last());
  s.last_seen = 100;
  s.evaluation = EvaluationRecord{.iteration = 400, .data_set = "validation", .lm_loss = 5.5};
  s.validation.add(7);
  s.validation.add(5.5);
  s.sample = SampleRecord{.iteration = 400,
                          .prompt = "In the beginning",
                          .text = " was the word,\nand the \x1b[2Jword",
                          .tokens = 9};
  s.saved = 400;
  return s;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(LiveView, ShowsTheStateOfTheRun) {
  const std::string text = joined(render(running(), Terminal{}, 100, 30, 102));
  for (const char* what :
       {"42%", "step 420/1000", "ETA 3m 10s", "4.81", "from 9", "5.5", "at step 400", "10.8k tokens/s",
        "1.2 s/step", "MFU 41.3%", "data wait 0.4%", "1.21 GiB of 23.3 GiB", "lr 1.20e-03", "grad norm 0.71",
        "saved       at step 400", "In the beginning was the word, and the"}) {
    EXPECT_THAT(text, HasSubstr(what));
  }
  // Control characters in generated text do not reach the terminal.
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("▇"));
}

TEST(LiveView, FitsEveryWindow) {
  const LiveState state = running();
  for (const std::size_t width : {1U, 2U, 7U, 10U, 20U, 39U, 79U, 200U}) {
    for (const std::size_t height : {1U, 2U, 3U, 5U, 9U, 30U}) {
      const auto lines = render(state, Terminal{}, width, height, 0);
      EXPECT_LE(lines.size(), height);
      for (const std::string& line : lines) EXPECT_LE(display_width(line), width);
    }
  }
  // If only one line fits, it shows the progress.
  const auto one = render(state, Terminal{}, 80, 1, 100);
  ASSERT_EQ(one.size(), 1U);
  EXPECT_THAT(one[0], HasSubstr("step 420/1000"));
}

TEST(LiveView, ShowsPhasesBeforeTheFirstStep) {
  LiveState s;
  s.name = "pretrain";
  EXPECT_THAT(joined(render(s, Terminal{}, 80, 24, 1)), HasSubstr("starting"));
  s.phase = "tokenizing corpus.txt";
  s.phase_share = 0.43;
  EXPECT_THAT(joined(render(s, Terminal{}, 80, 24, 1)),
              ::testing::AllOf(HasSubstr("43%"), HasSubstr("tokenizing corpus.txt")));
}

TEST(LiveView, ANanLossIsShown) {
  LiveState s = running();
  s.losses.add(std::numeric_limits<double>::quiet_NaN());
  s.last->nan_iterations = 1;
  const std::string text = joined(render(s, Terminal{}, 100, 30, 100));
  EXPECT_THAT(text, HasSubstr("nan"));
  EXPECT_THAT(text, HasSubstr("NaN or Inf in 1 step"));
}

TEST(Curve, IsBoundedAndKeepsItsShape) {
  Curve curve;
  constexpr int kPoints = 1'000'000;
  for (int i = 0; i < kPoints; ++i) curve.add(i);
  EXPECT_LT(curve.points().size(), Curve::kMax);
  EXPECT_GE(curve.points().size(), Curve::kMax / 2 - 1);
  EXPECT_EQ(curve.first(), 0);
  EXPECT_EQ(curve.last(), kPoints - 1);
  for (std::size_t i = 1; i < curve.points().size(); ++i) EXPECT_GT(curve.points()[i], curve.points()[i - 1]);
}

}  // namespace
}  // namespace primus
