// Tests of benchmark reports: statistics, comparison with a baseline, and formats. The times are invented.
#include "bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace primus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Verdict = BaselineCase::Verdict;

// Returns twenty samples, in five parts with the given medians, in seconds.
std::vector<double> parts(std::initializer_list<double> medians) {
  std::vector<double> samples;
  for (const double median : medians)
    for (const double factor : {0.9, 1.0, 1.0, 1.1}) samples.push_back(median * factor);
  return samples;
}

BenchmarkReport report_of(std::initializer_list<std::pair<const char*, std::vector<double>>> cases) {
  BenchmarkReport report{.suite = "gemm", .device = "cpu: 1 thread", .dtype = "fp32"};
  for (const auto& [name, samples] : cases)
    report.results.push_back({.name = name, .timing = summarize(samples), .flops = 2e9, .bytes = 3e6});
  return report;
}

std::string text_of(const BenchmarkReport& report) { return to_json(report).dump(); }

TEST(Timing, MedianPercentileAndSpread) {
  std::vector<double> samples;
  for (int i = 1; i <= 100; ++i) samples.push_back(i);
  std::reverse(samples.begin(), samples.end());
  const Timing timing = summarize(samples);
  EXPECT_EQ(timing.samples, 100);
  EXPECT_EQ(timing.fastest, 1);
  EXPECT_EQ(timing.slowest, 100);
  EXPECT_EQ(timing.p95, 95);
  EXPECT_EQ(timing.median, 51);
  // Five parts of 20 samples have the medians 90, 70, 50, 30 and 10.
  EXPECT_DOUBLE_EQ(timing.spread, 80.0 / 51);
  EXPECT_TRUE(timing.noisy());
}

TEST(Timing, ScatterWithinPartsIsNotNoise) {
  const Timing timing = summarize(parts({1, 1, 1, 1, 1}));
  EXPECT_EQ(timing.spread, 0);
  EXPECT_FALSE(timing.noisy());
  EXPECT_TRUE(summarize(parts({1, 1, 1, 1, 1.1})).noisy());
  EXPECT_FALSE(summarize(parts({1, 1, 1, 1, 1.04})).noisy());
}

TEST(Timing, FewSamples) {
  const Timing one = summarize({3});
  EXPECT_EQ(one.median, 3);
  EXPECT_EQ(one.p95, 3);
  EXPECT_EQ(one.spread, 0);
  const Timing two = summarize({2, 4});
  EXPECT_EQ(two.spread, 0.5);
}

TEST(Report, NoiseIsReported) {
  EXPECT_EQ(noise_note(report_of({{"calm", parts({1, 1, 1, 1, 1})}})), "");
  const auto noisy = report_of({{"calm", parts({1, 1, 1, 1, 1})}, {"wild", parts({1, 2, 1, 2, 1})}});
  EXPECT_THAT(noise_note(noisy), HasSubstr("1 of 2 results vary by more than 5 % (worst: wild"));
  EXPECT_THAT(to_text(noisy), HasSubstr("noisy machine"));
  EXPECT_EQ(to_json(noisy)["noisy"], true);
}

TEST(Report, WritesTabSeparatedValuesAndJsonLines) {
  BenchmarkReport report = report_of({{"a, b", parts({1, 1, 1, 1, 1})}, {"c", parts({2, 2, 2, 2, 2})}});
  report.place = "rack 7";
  const std::string tabs = to_csv(report, '\t');
  EXPECT_THAT(tabs, HasSubstr("suite\tdevice\tdtype\tcase\tseconds\t"));
  EXPECT_THAT(tabs, HasSubstr("\t\"a, b\"\t1\t"));
  const std::string lines = to_json_lines(report);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
  const auto second = nlohmann::json::parse(lines.substr(lines.find('\n') + 1));
  EXPECT_EQ(second["suite"], "gemm");
  EXPECT_EQ(second["case"], "c");
  EXPECT_EQ(second["seconds"]["median"], 2.0);
  EXPECT_EQ(second["place"], "rack 7");
  EXPECT_THAT(to_text(report), HasSubstr("| rack 7"));
}

TEST(Baseline, AReportEqualsItself) {
  const auto report = report_of({{"a", parts({1, 1, 1, 1, 1})}, {"b", parts({2, 2, 2, 2, 2})}});
  const auto comparison = compare_with_baseline(report, text_of(report), "old.json");
  EXPECT_FALSE(comparison.slower());
  for (const BaselineCase& c : comparison.cases) EXPECT_EQ(c.verdict, Verdict::kSame) << c.name;
}

TEST(Baseline, SlowdownsBeyondNoiseAreReported) {
  const auto before = report_of({{"calm", parts({1, 1, 1, 1, 1})}, {"wild", parts({1, 1.2, 1, 1.2, 1})}});
  // Both cases are 10 % slower, but the second one was noisy, so only the first is reported.
  const auto now =
      report_of({{"calm", parts({1.1, 1.1, 1.1, 1.1, 1.1})}, {"wild", parts({1.1, 1.1, 1.1, 1.1, 1.1})}});
  const auto comparison = compare_with_baseline(now, text_of(before), "old.json");
  EXPECT_TRUE(comparison.slower());
  EXPECT_EQ(comparison.cases[0].verdict, Verdict::kSlower);
  EXPECT_DOUBLE_EQ(comparison.cases[0].limit, 0.05);
  EXPECT_EQ(comparison.cases[1].verdict, Verdict::kSame);
  EXPECT_NEAR(comparison.cases[1].limit, 0.2 / 1.08, 1e-12);  // relative to the median of all samples
  EXPECT_THAT(to_text(comparison), HasSubstr("+10.0 %"));
  // If the two reports are swapped, the case is faster.
  EXPECT_EQ(compare_with_baseline(before, text_of(now), "new.json").cases[0].verdict, Verdict::kFaster);
}

TEST(Baseline, FourPercentAreNoRegression) {
  const auto before = report_of({{"a", parts({1, 1, 1, 1, 1})}}),
             now = report_of({{"a", parts({1.04, 1.04, 1.04, 1.04, 1.04})}});
  EXPECT_EQ(compare_with_baseline(now, text_of(before), "old.json").cases[0].verdict, Verdict::kSame);
}

TEST(Baseline, NewAndMissingCasesAreListedWithoutFailure) {
  const auto before = report_of({{"a", {1}}, {"gone", {1}}}), now = report_of({{"a", {1}}, {"new", {9}}});
  const auto comparison = compare_with_baseline(now, text_of(before), "old.json");
  ASSERT_EQ(comparison.cases.size(), 3U);
  EXPECT_EQ(comparison.cases[1].verdict, Verdict::kNew);
  EXPECT_EQ(comparison.cases[2].verdict, Verdict::kGone);
  EXPECT_FALSE(comparison.slower());
}

TEST(Baseline, FilesThatAreNoBaselinesAreRefused) {
  const auto report = report_of({{"a", {1}}});
  auto other_suite = report, other_device = report, other_type = report,
       other_cases = report_of({{"b", {1}}});
  other_suite.suite = "attention", other_device.device = "cpu: 2 threads", other_type.dtype = "bf16";
  const std::vector<std::string> refused = {
      "",
      "[]",
      "{}",
      "nonsense",
      text_of(other_suite),
      text_of(other_device),
      text_of(other_type),
      text_of(other_cases),
      R"({"suite":"gemm","device":"cpu: 1 thread","dtype":"fp32","results":7})",
      R"({"suite":"gemm","device":"cpu: 1 thread","dtype":"fp32","results":[1]})",
      R"({"suite":"gemm","device":"cpu: 1 thread","dtype":"fp32","results":[{"case":"a","spread":0}]})",
      R"({"suite":"gemm","device":"cpu: 1 thread","dtype":"fp32","results":[{"case":"a","spread":0,"seconds":{"median":0}}]})",
      R"({"suite":"gemm","device":"cpu: 1 thread","dtype":"fp32","results":[{"case":"a","spread":-1,"seconds":{"median":1}}]})",
      R"({"suite":"gemm","device":"cpu: 1 thread","dtype":"fp32","results":[{"case":1,"spread":0,"seconds":{"median":1}}]})"};
  for (const std::string& text : refused)
    EXPECT_THROW(compare_with_baseline(report, text, "old.json"), Error) << text;
  try {
    compare_with_baseline(report, text_of(other_device), "old.json");
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("its device is 'cpu: 2 threads', but this report's is 'cpu: 1 thread'"));
  }
}

TEST(Report, AllFormatsContainTheFigures) {
  auto report = report_of({{"forward \"1x2\" <3>", parts({1, 1, 1, 1, 1})}});
  report.gemm_ceiling = 4e9, report.copy_ceiling = 6e6;
  report.results.push_back({.name = "other", .timing = summarize({0.5}), .tokens = 100});
  EXPECT_THAT(
      to_csv(report),
      HasSubstr("gemm,\"cpu: 1 thread\",fp32,\"forward \"\"1x2\"\" <3>\",1,0.9,1.1,0,2e+09,3e+06,,4e+09"));
  EXPECT_THAT(to_markdown(report), HasSubstr("| other | 500000.0 |"));
  const auto json = to_json(report);
  EXPECT_EQ(json["results"][0]["flops_per_second"], 2e9);
  EXPECT_EQ(json["results"][0]["share_of_gemm_ceiling"], 0.5);
  EXPECT_EQ(json["results"][1]["tokens_per_second"], 200);
  EXPECT_FALSE(json["results"][1].contains("flops"));
}

TEST(Report, ThePageHasTableRooflineAndPlots) {
  auto report = report_of({{"forward <3>", parts({1, 1, 1, 1, 1})}});
  report.gemm_ceiling = 4e9, report.copy_ceiling = 6e6;
  const auto comparison = compare_with_baseline(report, text_of(report), "old.json");
  const std::string page = to_html(report, &comparison, "2026-11-22 12:00", "0.1");
  EXPECT_THAT(page, HasSubstr("forward &lt;3&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<3>")));
  EXPECT_THAT(page, HasSubstr("aria-label=\"Roofline\""));
  EXPECT_THAT(page, HasSubstr("Compared with old.json"));
  EXPECT_THAT(page, Not(HasSubstr("http")));  // the page loads nothing from the network
  // Cases with sizes are drawn as one line per group.
  BenchmarkReport sizes{.suite = "collectives", .device = "cpu", .dtype = {}};
  for (const char* group : {"all_reduce", "all_gather"})
    for (const double size : {1024.0, 4096.0})
      sizes.results.push_back(
          {.name = group, .group = group, .size = size, .timing = summarize({1e-3}), .bus_bytes = size});
  const std::string drawn = to_html(sizes, nullptr, "", "");
  std::size_t lines = 0;
  for (std::size_t at = drawn.find("<polyline"); at != std::string::npos;
       at = drawn.find("<polyline", at + 1))
    ++lines;
  EXPECT_EQ(lines, 2U);
  EXPECT_THAT(drawn, HasSubstr("1 KiB"));
}

}  // namespace
}  // namespace primus
