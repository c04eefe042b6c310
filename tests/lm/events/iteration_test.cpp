#include "lm/events/iteration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace primus {
namespace {

using ::testing::HasSubstr;

IterationRecord record_for_test() {
  IterationRecord record;
  record.iteration = 3;
  record.train_iters = 50;
  record.consumed_samples = 24;
  record.global_batch_size = 8;
  record.learning_rate = 1e-5;
  record.lm_loss = 10.83412;
  record.grad_norm = 2.1129;
  record.num_zeros = 0;
  record.throughput.now = {.seconds_per_iteration = 0.8123,
                           .tokens_per_second = 5043.06,
                           .flops_per_second = 1.24e12,
                           .mfu = 0.41,
                           .data_wait_share = 0.1};
  record.throughput.average = Speed{.seconds_per_iteration = 0.8109,
                                    .tokens_per_second = 5051.82,
                                    .flops_per_second = 1.26e12,
                                    .mfu = 0.4129,
                                    .data_wait_share = 0.004};
  record.throughput.eta = 192.0;
  return record;
}

TEST(FormatIteration, ContainsAmdPrimussLine) {
  EXPECT_EQ(format_iteration(record_for_test()),
            " iteration        3/      50 | consumed samples:           24 | "
            "elapsed time per iteration (ms): 812.3/810.9 | compute per GPU (TFLOP/s/GPU): 1.2 (avg 1.3) | "
            "tokens/s/GPU inst/harmonic mean: 5043.1/5051.8 | learning rate: 1.000000E-05 | "
            "global batch size:     8 | lm loss: 1.083412E+01 | loss scale: 1.0 | grad norm: 2.113 | num "
            "zeros: 0 | "
            "number of skipped iterations:   0 | number of nan iterations:   0 | "
            "MFU: 41.3% | ETA: 3m 12s | data wait: 0.4%");
}

TEST(FormatIteration, NamesTheWorstBalancedLayer) {
  IterationRecord record = record_for_test();
  record.routing = {{.layer = 1, .imbalance = 1.5}, {.layer = 2, .imbalance = 2.5}, {.layer = 3}};
  EXPECT_THAT(format_iteration(record), HasSubstr(" | expert imbalance: 1.67 (layer 2: 2.50) | number of"));
  record.routing[0].dropped = 0.03;
  EXPECT_THAT(format_iteration(record),
              HasSubstr(" | expert imbalance: 1.67 (layer 2: 2.50) | dropped: 1.00% |"));
}

TEST(FormatIteration, WarmUpLinesHaveNoAverages) {
  IterationRecord record = record_for_test();
  record.throughput.average.reset();
  record.throughput.eta.reset();
  record.throughput.now.mfu.reset();
  record.grad_norm.reset();
  record.num_zeros.reset();
  EXPECT_EQ(format_iteration(record),
            " iteration        3/      50 | consumed samples:           24 | "
            "elapsed time per iteration (ms): 812.3 | throughput per GPU (TFLOP/s/GPU): 1.2 | "
            "tokens per GPU (tokens/s/GPU): 5043.1 | learning rate: 1.000000E-05 | "
            "global batch size:     8 | lm loss: 1.083412E+01 | loss scale: 1.0 | "
            "number of skipped iterations:   0 | number of nan iterations:   0 | "
            "data wait: 10.0%");
}

TEST(FormatIteration, ShowsMemoryAndOtherLosses) {
  IterationRecord record = record_for_test();
  record.other_losses = {{"load_balancing_loss", 1.02}};
  record.memory = DeviceMemory{"hip", 96.0 * (1 << 30), 192.0 * (1 << 30)};
  const std::string line = format_iteration(record);
  EXPECT_THAT(line,
              HasSubstr(" | lm loss: 1.083412E+01 | load_balancing_loss: 1.020000E+00 | loss scale: 1.0 | "));
  EXPECT_THAT(line, HasSubstr(" | hip mem usage/free/total/usage_ratio: 96.00GB/96.00GB/192.00GB/50.00% | "));
}

// Unknown or uninformative values are left out of the line.
TEST(FormatIteration, OmitsMeaninglessFields) {
  IterationRecord record = record_for_test();
  record.memory = DeviceMemory{"cpu", 1e9, 2e9};
  record.throughput.eta.reset();
  record.throughput.average->mfu.reset();
  record.throughput.average->data_wait_share = 0;
  EXPECT_THAT(format_iteration(record), ::testing::EndsWith(" | number of nan iterations:   0"));
}

TEST(FormatIteration, ShowsNan) {
  IterationRecord record = record_for_test();
  record.lm_loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(format_iteration(record), HasSubstr(" | lm loss: NAN | "));
}

// Parses a line as users' public log parsers do, with these regular expressions:
//   iteration\s+(\d+)\s*/\s*(\d+)
//   <label>:\s*([0-9.+-eE]+)(?:/([0-9.]+))?
// The match is written by hand: after the label come optional blanks, the longest run of number characters,
// and a second number after "/" or "(avg ".
struct Value {
  double first = 0.0;
  std::optional<double> second;
};

std::string_view skip_blanks(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return text;
}

std::optional<double> take_number(std::string_view& text) {
  std::size_t length = 0;
  while (length < text.size() && (std::isdigit(static_cast<unsigned char>(text[length])) != 0 ||
                                  std::string_view(".+-eE").find(text[length]) != std::string_view::npos)) {
    ++length;
  }
  double value = 0.0;
  const auto result = std::from_chars(text.data(), text.data() + length, value);
  if (length == 0 || result.ec != std::errc{} || result.ptr != text.data() + length) return std::nullopt;
  text.remove_prefix(length);
  return value;
}

std::optional<Value> find_value(std::string_view line, std::string_view label) {
  const std::size_t at = line.find(label);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = skip_blanks(line.substr(at + label.size()));
  Value value;
  const auto first = take_number(rest);
  if (!first) return std::nullopt;
  value.first = *first;
  for (const std::string_view separator : {"/", " (avg "}) {
    if (rest.substr(0, separator.size()) == separator) {
      rest.remove_prefix(separator.size());
      value.second = take_number(rest);
      break;
    }
  }
  return value;
}

TEST(FormatIteration, ParsersOfPrimusLogsReadIt) {
  const std::string line = "[20260101 12:00:00][rank-0/1][INFO]     [----------trainer.cpp:118] : " +
                           format_iteration(record_for_test());
  // The iteration segment: "iteration", blanks, a number, "/", blanks, a number.
  std::string_view rest = line;
  rest = skip_blanks(rest.substr(rest.find("iteration ") + 9));
  EXPECT_EQ(take_number(rest), 3);
  ASSERT_EQ(rest.front(), '/');
  rest = skip_blanks(rest.substr(1));
  EXPECT_EQ(take_number(rest), 50);

  const std::map<std::string, std::pair<double, std::optional<double>>> expected = {
      {"consumed samples:", {24, {}}},
      {"elapsed time per iteration (ms):", {812.3, 810.9}},
      {"compute per GPU (TFLOP/s/GPU):", {1.2, 1.3}},
      {"tokens/s/GPU inst/harmonic mean:", {5043.1, 5051.8}},
      {"learning rate:", {1e-5, {}}},
      {"global batch size:", {8, {}}},
      {"lm loss:", {10.83412, {}}},
      {"grad norm:", {2.113, {}}},
      {"number of skipped iterations:", {0, {}}},
      {"number of nan iterations:", {0, {}}},
      {"MFU:", {41.3, {}}},
      {"data wait:", {0.4, {}}},
  };
  for (const auto& [label, values] : expected) {
    const auto found = find_value(line, label);
    ASSERT_TRUE(found.has_value()) << label;
    EXPECT_DOUBLE_EQ(found->first, values.first) << label;
    EXPECT_EQ(found->second, values.second) << label;
  }
  // Splits the line at '|' and matches each segment at its start.
  for (std::size_t at = line.find(" | "); at != std::string::npos; at = line.find(" | ", at + 1)) {
    EXPECT_NE(line[at + 3], ' ') << line.substr(at);
  }
}

TEST(FormatEvaluation, IsMegatronsLine) {
  EXPECT_EQ(format_evaluation({.iteration = 100, .lm_loss = 2.0}),
            " validation loss at iteration 100 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00");
  EXPECT_THAT(format_evaluation({.iteration = 1, .lm_loss = 1000.0}), HasSubstr("PPL: 4.851652E+08"));
}

TEST(NumericsFault, NamesTheIterationAndTheOperator) {
  const Error error =
      NumericsFault{412, "lm loss", std::numeric_limits<double>::quiet_NaN(), "layers.3.attention"}
          .to_error();
  EXPECT_EQ(error.kind(), ErrorKind::kNumerics);
  EXPECT_STREQ(
      error.what(),
      "lm loss is nan at iteration 412; the first operator with such a result is layers.3.attention");
  EXPECT_FALSE(error.hint().empty());
}

// Before the first update, the learning rate cannot be the cause.
TEST(NumericsFault, BlamesDamagedWeightsNotTheLearningRate) {
  NumericsFault fault{.iteration = 1,
                      .quantity = "lm loss",
                      .value = std::numeric_limits<double>::quiet_NaN(),
                      .weights = NumericsFault::Weights::kDamaged,
                      .damaged = "lm_head.weight"};
  EXPECT_EQ(fault.to_error().hint(),
            "the loaded weights are damaged (lm_head.weight contains nan or inf): load another copy of them; "
            "'primus model export MODEL NEW' names tensors with nan");
  fault.damaged.clear();
  EXPECT_THAT(fault.to_error().hint(), HasSubstr("are damaged: load another copy"));
  fault.weights = NumericsFault::Weights::kUntrained;
  EXPECT_THAT(fault.to_error().hint(), HasSubstr("lr is not the cause"));
}

TEST(FormatIteration, NanHasNoSign) {
  IterationRecord record = record_for_test();
  record.lm_loss = -std::numeric_limits<double>::quiet_NaN();
  record.grad_norm = -std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(format_iteration(record), HasSubstr("lm loss: NAN |"));
  EXPECT_THAT(format_iteration(record), HasSubstr("grad norm: nan |"));
}

}  // namespace
}  // namespace primus
