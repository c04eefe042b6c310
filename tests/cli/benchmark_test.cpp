// primus benchmark gemm, attention, grouped-gemm: what they print, and what they refuse. Figures themselves
// are not judged: other programs may run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/program.h"

namespace primus {
namespace {

using test::ProgramResult;
using test::run_program;
using ::testing::HasSubstr;

const std::vector<std::string> kQuick = {"--seconds", "0.001", "--device", "cpu", "--threads", "1"};

ProgramResult benchmark(std::vector<std::string> words) {
  words.insert(words.begin(), "benchmark");
  words.insert(words.end(), kQuick.begin(), kQuick.end());
  return run_program(words);
}

nlohmann::json report_of(std::vector<std::string> words) {
  words.push_back("--json");
  const ProgramResult result = benchmark(std::move(words));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_GT(report["gemm_ceiling_flops_per_second"].get<double>(), 0);
  EXPECT_GT(report["copy_ceiling_bytes_per_second"].get<double>(), 0);
  for (const auto& line : report["results"]) {
    const double seconds = line["seconds"]["median"];
    EXPECT_GE(seconds, line["seconds"]["min"].get<double>());
    EXPECT_NEAR(line["flops_per_second"].get<double>() * seconds / line["flops"].get<double>(), 1, 1e-9);
    EXPECT_NEAR(line["bytes_per_second"].get<double>() * seconds / line["bytes"].get<double>(), 1, 1e-9);
    EXPECT_GE(line["samples"].get<int>(), 5);
  }
  return report;
}

TEST(Benchmarks, Gemm) {
  const auto report = report_of({"gemm", "--shape", "64x48x32", "--shape", "8x16x24", "--dtype", "bf16"});
  EXPECT_EQ(report["operation"], "gemm");
  EXPECT_EQ(report["dtype"], "bf16");
  ASSERT_EQ(report["results"].size(), 6U);
  for (const auto& line : report["results"]) {
    const bool first = line["case"].get<std::string>().ends_with(" 64x48x32");
    EXPECT_EQ(line["flops"].get<double>(), first ? 2.0 * 64 * 48 * 32 : 2.0 * 8 * 16 * 24);
  }
  EXPECT_EQ(report["results"][1]["case"], "forward 64x48x32");
  EXPECT_EQ(report["results"][1]["bytes"].get<double>(), 2.0 * (64 * 32 + 48 * 32 + 64 * 48));
}

TEST(Benchmarks, Attention) {
  const auto report = report_of(
      {"attention", "--seq-length", "64", "--heads", "4", "--kv-heads", "2", "--head-dim", "16", "--full"});
  ASSERT_EQ(report["results"].size(), 2U);
  EXPECT_EQ(report["results"][0]["case"], "forward 1x64 4/2 heads of 16");
  const double forward = 4.0 * 64 * 64 * 4 * 16;  // two products of every query with every key
  EXPECT_EQ(report["results"][0]["flops"].get<double>(), forward);
  EXPECT_EQ(report["results"][1]["flops"].get<double>(), 2.5 * forward);
}

TEST(Benchmarks, GroupedGemm) {
  for (const char* skew : {"0.75", "1"}) {
    const auto report = report_of({"grouped-gemm", "--tokens", "32", "--experts", "16", "--top-k", "2",
                                   "--in", "24", "--out", "40", "--skew", skew});
    ASSERT_EQ(report["results"].size(), 6U);
    for (const auto& line : report["results"]) {
      EXPECT_EQ(line["flops"].get<double>(), 2.0 * 64 * 24 * 40) << line["case"];
    }
  }
}

TEST(Benchmarks, TablesHaveALineForEachResult) {
  const ProgramResult text = benchmark({"gemm", "--shape", "8x8x8"});
  EXPECT_THAT(text.out, HasSubstr("weight gradient 8x8x8"));
  const ProgramResult csv = benchmark({"gemm", "--shape", "8x8x8", "--csv"});
  EXPECT_EQ(std::count(csv.out.begin(), csv.out.end(), '\n'), 4);
  EXPECT_THAT(csv.out, HasSubstr("gemm,\"cpu: 1 thread"));
  const ProgramResult markdown = benchmark({"gemm", "--shape", "8x8x8", "--markdown"});
  EXPECT_THAT(markdown.out, HasSubstr("| forward 8x8x8 |"));
}

TEST(Benchmarks, WhatCannotBeMeasuredIsRefused) {
  const std::vector<std::vector<std::string>> refused = {
      {"gemm", "--shape", "3x4"},
      {"gemm", "--shape", "3x4x"},
      {"gemm", "--shape", "3x4x5x"},
      {"gemm", "--shape", "0x4x5"},
      {"gemm", "--shape", "9223372036854775807x2x2"},
      {"gemm", "--shape", "1048576x1048576x1048576"},
      {"gemm", "--json", "--csv"},
      {"gemm", "--seconds", "0"},
      {"attention", "--heads", "6", "--kv-heads", "4"},
      {"attention", "--heads", "2", "--kv-heads", "4"},
      {"attention", "--window", "-1"},
      {"grouped-gemm", "--experts", "4", "--top-k", "5"},
      {"grouped-gemm", "--skew", "1.5"},
      {"grouped-gemm", "--tokens", "1048576", "--experts", "4096", "--top-k", "4096"},
  };
  for (const auto& words : refused) {
    std::vector<std::string> all = words;
    all.insert(all.begin(), "benchmark");
    all.insert(all.end(), {"--device", "cpu"});
    const ProgramResult result = run_program(all);
    EXPECT_EQ(result.exit_code, 2) << words[0] << " " << words.back() << result.err;
  }
}

}  // namespace
}  // namespace primus
