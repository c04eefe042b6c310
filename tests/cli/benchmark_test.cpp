// Tests of `primus benchmark`: the suites' output and report files, refused options, and baselines. Measured
// times are not compared with fixed limits, because other programs may run on the machine.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "base/files/file.h"
#include "cli/program_names.h"

namespace primus {
namespace {

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
    if (line.contains("flops")) {  // a memory-bound case reports no FLOPs
      EXPECT_NEAR(line["flops_per_second"].get<double>() * seconds / line["flops"].get<double>(), 1, 1e-9);
    }
    EXPECT_NEAR(line["bytes_per_second"].get<double>() * seconds / line["bytes"].get<double>(), 1, 1e-9);
    EXPECT_GE(line["samples"].get<int>(), 5);
  }
  return report;
}

nlohmann::json json_of(std::vector<std::string> words) {
  words.insert(words.begin(), "benchmark");
  words.push_back("--json");
  const ProgramResult result = run_program(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

// On a terminal, a benchmark shows its progress on standard error.
TEST(Benchmarks, DescribeThemselves) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"gemm", "--shape", "64x64x64"}, {"memory", "--sizes", "1K"}}) {
    std::vector<std::string> all{"benchmark"};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), kQuick.begin(), kQuick.end());
    const ProgramResult shown =
        run_program(all, {.environment = {{"TERM", "xterm"}}, .error_terminal = true});
    EXPECT_EQ(shown.exit_code, 0);
    EXPECT_THAT(shown.err, HasSubstr("measuring  0 measurements done"));
    EXPECT_THAT(run_program(all).err, testing::Not(HasSubstr("measuring")));
  }
}

TEST(Benchmarks, Gemm) {
  const auto report = report_of({"gemm", "--shape", "64x48x32", "--shape", "8x16x24", "--dtype", "bf16"});
  EXPECT_EQ(report["suite"], "gemm");
  EXPECT_EQ(report["dtype"], "bf16");
  ASSERT_EQ(report["results"].size(), 6U);
  for (const auto& line : report["results"]) {
    const bool first = line["case"].get<std::string>().ends_with(" 64x48x32");
    EXPECT_EQ(line["flops"].get<double>(), first ? 2.0 * 64 * 48 * 32 : 2.0 * 8 * 16 * 24);
  }
  EXPECT_EQ(report["results"][1]["case"], "forward 64x48x32");
  EXPECT_EQ(report["results"][1]["bytes"].get<double>(), 2.0 * (64 * 32 + 48 * 32 + 64 * 48));
}

// Each product is timed twice: from bf16 operands, and from operands that are quantised in advance.
TEST(Benchmarks, GemmInFp8) {
  const auto report = report_of({"gemm", "--shape", "64x48x32", "--dtype", "fp8"});
  EXPECT_EQ(report["dtype"], "fp8");
  ASSERT_EQ(report["results"].size(), 6U);
  for (const auto& line : report["results"]) EXPECT_EQ(line["flops"].get<double>(), 2.0 * 64 * 48 * 32);
  EXPECT_EQ(report["results"][2]["case"], "forward 64x48x32");
  EXPECT_EQ(report["results"][2]["bytes"].get<double>(), 2.0 * (64 * 32 + 48 * 32 + 64 * 48));
  EXPECT_EQ(report["results"][3]["case"], "forward 64x48x32, quantised before");
  EXPECT_EQ(report["results"][3]["bytes"].get<double>(), 64 * 32 + 48 * 32 + 2 * 64 * 48);
  const ProgramResult odd = benchmark({"gemm", "--shape", "64x48x40", "--dtype", "fp8"});
  EXPECT_EQ(odd.exit_code, 2);
  EXPECT_THAT(odd.err, testing::AllOf(HasSubstr("multiples of 16, not 64 x 40"), HasSubstr("hint:")));
}

TEST(Benchmarks, GemmInFp4) {
  const auto report = report_of({"gemm", "--shape", "64x48x40", "--dtype", "fp4"});
  EXPECT_EQ(report["dtype"], "fp4");
  ASSERT_EQ(report["results"].size(), 6U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(report["results"][i]["flops"].get<double>(), 2.0 * 64 * 48 * 40);
    EXPECT_EQ(report["results"][3 + i]["bytes"].get<double>(), i < 2 ? 4.0 * 64 * 40 : 4.0 * 48 * 40);
  }
  EXPECT_EQ(report["results"][1]["case"], "forward 64x48x40");
  EXPECT_EQ(report["results"][5]["case"], "rounding weights, in squares, 48x40");
  const ProgramResult attention = benchmark({"attention", "--dtype", "fp4"});
  EXPECT_EQ(attention.exit_code, 2);
  EXPECT_THAT(attention.err, HasSubstr("benchmark gemm --dtype fp4"));
}

TEST(Benchmarks, ModelsInFp8WithoutTheirExperts) {
  const auto report =
      report_of({"gemm-deepseek", "--model", "V2_Lite", "--mbs", "1", "--seqlen", "16", "--hidden-size", "64",
                 "--intermediate-size", "96", "--vocab-size", "112", "--dtype", "fp8"});
  for (const auto& line : report["results"])
    EXPECT_THAT(line["case"].get<std::string>(), testing::Not(HasSubstr("experts'")));
  ASSERT_GE(report["notes"].size(), 2U);
  EXPECT_THAT(report["notes"][0].get<std::string>(), HasSubstr("experts' gate and up: skipped"));
}

// As in bf16, weight gradients are accumulated in fp32.
TEST(Benchmarks, ProductsAndAttentionInFp16) {
  const auto gemm = report_of({"gemm", "--shape", "64x48x32", "--dtype", "fp16"});
  EXPECT_EQ(gemm["dtype"], "fp16");
  ASSERT_EQ(gemm["results"].size(), 3U);
  EXPECT_EQ(gemm["results"][0]["bytes"].get<double>(), 2.0 * (64 * 32 + 64 * 48) + 2.0 * 4 * 48 * 32);
  EXPECT_EQ(gemm["results"][1]["bytes"].get<double>(), 2.0 * (64 * 32 + 48 * 32 + 64 * 48));
  const auto attention = report_of({"attention", "--seq-length", "64", "--heads", "4", "--kv-heads", "2",
                                    "--head-dim", "16", "--dtype", "fp16"});
  EXPECT_EQ(attention["dtype"], "fp16");
  ASSERT_EQ(attention["results"].size(), 2U);
  const auto experts =
      report_of({"gemm-deepseek", "--model", "V2_Lite", "--mbs", "1", "--seqlen", "16", "--hidden-size", "64",
                 "--intermediate-size", "96", "--vocab-size", "112", "--dtype", "fp16"});
  EXPECT_THAT(
      experts["notes"][0].get<std::string>(),
      HasSubstr("experts' gate and up: skipped, because grouped expert products do not support fp16"));
  const ProgramResult grouped = benchmark({"grouped-gemm", "--dtype", "fp16"});
  EXPECT_EQ(grouped.exit_code, 2);
  EXPECT_THAT(grouped.err, testing::AllOf(HasSubstr("only benchmarks of products, attention and collectives"),
                                          HasSubstr("use --dtype bf16")));
}

// --check passes in fp16: the sums of small integers are exact.
TEST(Benchmarks, CollectivesInFp16) {
  const auto report =
      json_of({"collectives", "--nproc", "2",         "--transport", "threads", "--op",     "all",
               "--check",     "--sizes", "1K",        "--iters",     "2",       "--warmup", "1",
               "--device",    "cpu",     "--threads", "1",           "--dtype", "fp16"});
  EXPECT_EQ(report["dtype"], "fp16");
  EXPECT_EQ(report["results"].size(), 7U);
  const auto rounded = json_of({"collectives", "--nproc", "2", "--op", "all_reduce", "--sizes", "1",
                                "--iters", "5", "--warmup", "1", "--device", "cpu", "--threads", "1"});
  EXPECT_THAT(rounded["notes"].dump(), HasSubstr("rounded up to the same number of elements for each rank"));
  const auto strided = json_of({"strided-allgather", "--nproc", "2", "--stride", "1", "--sizes-mb", "1",
                                "--iters", "2", "--warmup", "1", "--transport", "threads", "--device", "cpu",
                                "--threads", "1", "--dtype", "fp16"});
  EXPECT_EQ(strided["dtype"], "fp16");
}

TEST(Benchmarks, Attention) {
  const auto report = report_of(
      {"attention", "--seq-length", "64", "--heads", "4", "--kv-heads", "2", "--head-dim", "16", "--full"});
  ASSERT_EQ(report["results"].size(), 2U);
  EXPECT_EQ(report["results"][0]["case"], "forward 1x64 4/2 heads of 16");
  const double forward = 4.0 * 64 * 64 * 4 * 16;  // two matrix products, each over all query-key pairs
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

std::string content(const Path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Benchmarks, ProductsOfAModel) {
  const auto report = report_of(
      {"gemm-dense", "--model", "llama_tiny", "--mbs", "2", "--seqlen", "16", "--vocab-size", "100"});
  EXPECT_EQ(report["suite"], "gemm-dense");
  EXPECT_EQ(report["results"].size(), 5U * 3);
  EXPECT_THAT(report["results"].back()["case"].get<std::string>(),
              HasSubstr("vocabulary, input gradient 32x100x"));
  const ProgramResult wrong = benchmark({"gemm-dense", "--model", "llama_tinny"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("llama_tinny"));
  EXPECT_EQ(benchmark({"gemm-deepseek", "--mbs", "0"}).exit_code, 2);
}

// The size options of AMD Primus's gemm-deepseek suite are accepted. A size that the model does not have is
// refused.
TEST(Benchmarks, ProductsOfDeepseekBySizes) {
  const auto report = report_of({"gemm-deepseek",
                                 "--model",
                                 "Deepseek_V2_Lite",
                                 "--seqlen",
                                 "16",
                                 "--hidden-size",
                                 "32",
                                 "--intermediate-size",
                                 "40",
                                 "--moe-intermediate-size",
                                 "24",
                                 "--n-routed-experts",
                                 "4",
                                 "--num-experts-per-tok",
                                 "2",
                                 "--n-shared-experts",
                                 "3",
                                 "--num-attention-heads",
                                 "2",
                                 "--kv-lora-rank",
                                 "8",
                                 "--q-lora-rank",
                                 "12",
                                 "--qk-nope-head-dim",
                                 "6",
                                 "--qk-rope-head-dim",
                                 "2",
                                 "--v-head-dim",
                                 "4",
                                 "--vocab-size",
                                 "50"});
  std::vector<std::string> forward;
  for (const auto& line : report["results"]) {
    const std::string name = line["case"];
    if (name.find("forward") != std::string::npos) forward.push_back(name);
  }
  EXPECT_THAT(
      forward,
      ::testing::ElementsAre(
          "q down, forward 16x12x32", "q up, forward 16x16x12", "kv down, forward 16x10x32",
          "kv up, forward 16x20x8", "attention out, forward 16x32x8", "gate and up, forward 16x80x32",
          "down, forward 16x32x40", "experts' gate and up, 4 experts, forward 32x48x32",
          "experts' down, 4 experts, forward 32x32x24", "shared expert's gate and up, forward 16x144x32",
          "shared expert's down, forward 16x32x72", "vocabulary, forward 16x50x32"));
  const ProgramResult dense =
      benchmark({"gemm-deepseek", "--model", "llama_tiny", "--vocab-size", "100", "--v-head-dim", "4"});
  EXPECT_EQ(dense.exit_code, 2);
  EXPECT_THAT(dense.err, HasSubstr("--v-head-dim: 'llama_tiny' has no product of that size"));
  const ProgramResult no_size =
      benchmark({"gemm-deepseek", "--model", "llama_tiny", "--vocab-size", "100", "--n-routed-experts", "4"});
  EXPECT_EQ(no_size.exit_code, 2);
  EXPECT_THAT(no_size.err, HasSubstr("set --moe-intermediate-size"));
  const ProgramResult few =
      benchmark({"gemm-deepseek", "--n-routed-experts", "4", "--num-experts-per-tok", "9"});
  EXPECT_EQ(few.exit_code, 2);
  EXPECT_THAT(few.err, HasSubstr("choose --num-experts-per-tok"));
}

TEST(Benchmarks, AttentionOfModelsAndFiles) {
  const test::TemporaryFolder folder;
  const std::string file = folder.path() / "shapes.json", table = folder.path() / "attention.csv";
  std::ofstream(file) << R"([
    {"model": "A", "seqlen_q": 16, "seqlen_kv": 16, "num_head_q": 4, "num_head_kv": 2, "head_dim_qk": 8,
     "head_dim_v": 8},
    {"model": "B", "seqlen_q": 8, "seqlen_kv": 8, "num_head_q": 2, "num_head_kv": 2, "head_dim_qk": 12,
     "head_dim_v": 8, "causal": false},
    {"model": "C", "seqlen_q": 8, "seqlen_kv": 8, "num_head_q": 2, "num_head_kv": 1, "head_dim_qk": 8,
     "head_dim_v": 8}])";
  const std::string uneven = folder.path() / "uneven.json", none = folder.path() / "none.json";
  std::ofstream(none) << "[]";
  std::ofstream(uneven) << R"([{"model": "A", "seqlen_q": 1, "seqlen_kv": 16, "num_head_q": 4,
    "num_head_kv": 2, "head_dim_qk": 8, "head_dim_v": 8}])";
  const auto names = [](const nlohmann::json& report) {
    std::vector<std::string> all;
    for (const auto& line : report["results"]) all.push_back(line["case"]);
    return all;
  };
  const auto report = report_of({"attention", "--shapes-json-path", file, "--skip-models", "C", "--mbs-list",
                                 "1,3", "--backend", "flash", "--report-csv-path", table});
  EXPECT_THAT(names(report),
              ::testing::ElementsAre(
                  "A, forward 1x16 4/2 heads of 8 causal", "A, backward 1x16 4/2 heads of 8 causal",
                  "A, forward 3x16 4/2 heads of 8 causal", "A, backward 3x16 4/2 heads of 8 causal",
                  "B, forward 1x8 2/2 heads of 12 and 8", "B, backward 1x8 2/2 heads of 12 and 8",
                  "B, forward 3x8 2/2 heads of 12 and 8", "B, backward 3x8 2/2 heads of 12 and 8"));
  const std::string csv = content(table);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 8);
  EXPECT_THAT(names(report_of({"attention", "--shapes-json-path", file, "--models", "C"})),
              ::testing::ElementsAre("C, forward 1x8 2/1 heads of 8 causal",
                                     "C, backward 1x8 2/1 heads of 8 causal"));
  // A preset can be named as a model.
  EXPECT_THAT(names(report_of({"attention", "--models", "llama_tiny", "--backend", "all"}))[0],
              HasSubstr("llama_tiny, forward 1x"));
  for (const auto& [words, sentence] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--models", "all", "--heads", "4"}, "give the sizes themselves"},
           {{"--models", "all", "--skip-models",
             "Llama2_7B,Llama2_70B,Llama3_8B,Llama3_70B,mistral_8x7B,"
             "mistral_8x22B"},
            "leave no shape"},
           {{"--skip-models", "A"}, "without a list of models"},
           {{"--shapes-json-path", file, "--models", "D"}, "does not have the model 'D'"},
           {{"--shapes-json-path", file, "--skip-models", "D"}, "does not have the model 'D'"},
           {{"--models", "all", "--skip-models", "Llama2_7C"}, "did you mean 'Llama2_7B'"},
           {{"--shapes-json-path", uneven}, "its seqlen_q 1 and seqlen_kv 16 differ"},
           {{"--shapes-json-path", none}, "list in the file is empty"},
           {{"--models", "Llama9_7B"}, "Llama9_7B"},
           {{"--mbs-list", "1,0"}, "whole numbers"},
           {{"--mbs-list", "1", "--batch", "1"}, "leave out one of them"},
           {{"--backend", "cudnn"}, "has no cuDNN"},
           {{"--backend", "ck"}, "Composable Kernel"},
           {{"--dtype", "fp8"}, "primus benchmark gemm --dtype fp8"}}) {
    std::vector<std::string> all{"attention"};
    all.insert(all.end(), words.begin(), words.end());
    const ProgramResult result = benchmark(all);
    EXPECT_EQ(result.exit_code, 2) << words.back();
    EXPECT_THAT(result.err, HasSubstr(sentence));
  }
}

TEST(Benchmarks, NumaNeedsAGpu) {
  const ProgramResult result =
      run_program({"benchmark", "collectives", "--nproc", "2", "--numa", "--sizes", "1K", "--device", "cpu"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("this machine has no GPU"));
}

TEST(Benchmarks, CollectivesOfProcessesAndThreads) {
  for (const char* transport : {"auto", "tcp", "threads"}) {
    const auto report = json_of({"collectives", "--nproc", "2", "--transport", transport, "--op", "all",
                                 "--check", "--sizes", "1K,64K", "--iters", "5", "--warmup", "1", "--device",
                                 "cpu", "--threads", "1", "--per-rank"});
    EXPECT_EQ(report["suite"], "collectives");
    EXPECT_THAT(report["device"].get<std::string>(), HasSubstr("2 ranks on 1 node"));
    ASSERT_EQ(report["results"].size(), 6U * 2 + 1);
    EXPECT_EQ(report["results"][1]["case"], "all_reduce 65536");
    EXPECT_EQ(report["results"][1]["bus_bytes"].get<double>(), 65536);
    EXPECT_EQ(report["results"][1]["rank_median_seconds"].size(), 2U);
  }
  const auto strided = json_of({"strided-allgather", "--nproc", "4", "--stride", "2", "--sizes-mb", "1",
                                "--iters", "5", "--warmup", "1", "--device", "cpu", "--threads", "1"});
  EXPECT_EQ(strided["results"][1]["case"], "ranks 1,3, 1048576 each");
}

TEST(Benchmarks, RcclIsAnotherNameAndTracesCalls) {
  const test::TemporaryFolder folder;
  const std::string trace = folder.path() / "trace.jsonl";
  const auto report = json_of({"rccl",
                               "--nproc",
                               "2",
                               "--transport",
                               "threads",
                               "--op",
                               "alltoall",
                               "all_gather",
                               "--min-bytes",
                               "1K",
                               "--max-bytes",
                               "4K",
                               "--num-sizes",
                               "3",
                               "--repeat",
                               "2",
                               "--iters",
                               "3",
                               "--warmup",
                               "0",
                               "--device",
                               "cpu",
                               "--per-iter-trace",
                               "--trace-file",
                               trace,
                               "--cluster",
                               "rack 7",
                               "--aggregate-repeat"});
  // Each case has a result per repetition and one for both repetitions together.
  ASSERT_EQ(report["results"].size(), 2U * 3 * 3);
  EXPECT_EQ(report["results"][5]["size_bytes"].get<double>(), 2048);
  EXPECT_EQ(report["results"][5]["case"], "all_to_all 2048");
  EXPECT_EQ(report["results"][4]["case"], "all_to_all 2048, repetition 2");
  EXPECT_EQ(report["place"], "rack 7");
  const std::string lines = content(trace);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2 * 3 * 2 * 3);
  // The options -M, -N and -K, which AMD Primus documents, are accepted.
  const auto product =
      json_of({"gemm", "-M", "64", "-N", "32", "-K", "16", "--duration", "0.001", "--device", "cpu"});
  EXPECT_THAT(product["results"][0]["case"].get<std::string>(), HasSubstr("64x32x16"));
  EXPECT_EQ(nlohmann::json::parse(lines.substr(0, lines.find('\n')))["seconds"].size(), 2U);
}

TEST(Benchmarks, TracesOfSomeCallsAndTimesOfRanks) {
  const test::TemporaryFolder folder;
  const std::string table = folder.path() / "report.tsv", ranks = folder.path() / "ranks.csv";
  const std::vector<std::string> common{
      "rccl",       "--nproc",   "2",        "--transport", "threads",         "--op",
      "all_reduce", "broadcast", "--sizes",  "1K,4K",       "--iters",         "4",
      "--warmup",   "0",         "--device", "cpu",         "--per-iter-trace"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> words = common;
    words.insert(words.begin(), "benchmark");
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  };
  const ProgramResult result = with({"--trace-ops", "broadcast", "--trace-sizes", "4K", "--trace-limit", "3",
                                     "--output-file", table, "--per-rank-file", ranks});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string trace = content(folder.path() / "report_trace.jsonl");
  EXPECT_EQ(std::count(trace.begin(), trace.end(), '\n'), 3);
  const auto line = nlohmann::json::parse(trace.substr(0, trace.find('\n')));
  EXPECT_EQ(line["op"], "broadcast");
  EXPECT_EQ(line["bytes"], 4096);
  EXPECT_EQ(line["iteration"], 1);
  const std::string times = content(ranks);
  EXPECT_EQ(std::count(times.begin(), times.end(), '\n'), 1 + 2 * 2 * 2);
  EXPECT_THAT(times, HasSubstr("\n\"all_reduce 1024\",1,"));
  EXPECT_THAT(content(table), HasSubstr("\t\"all_reduce 4096\"\t"));

  // Without --trace-file, a second run writes its trace to a new file, and the first trace is kept.
  for (int i = 0; i < 2; ++i) {
    std::vector<std::string> words = common;
    words.insert(words.begin(), "benchmark");
    ASSERT_EQ(run_program(words, {.folder = folder.path()}).exit_code, 0);
  }
  EXPECT_FALSE(content(folder.path() / "rccl_trace.jsonl").empty());
  EXPECT_FALSE(content(folder.path() / "rccl_trace_2.jsonl").empty());

  const std::string cells = folder.path() / "trace.csv";
  ASSERT_EQ(with({"--trace-file", cells}).exit_code, 0);
  const std::string rows = content(cells);
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 1 + 2 * 2 * 4 * 2);
  EXPECT_THAT(rows, HasSubstr("\nbroadcast,4096,1,4,1,"));

  // Sizes 3 and 8 are both rounded to messages of eight bytes, so one case remains.
  const std::string small = folder.path() / "small.jsonl";
  ASSERT_EQ(run_program({"benchmark",
                         "rccl",
                         "--nproc",
                         "2",
                         "--transport",
                         "threads",
                         "--op",
                         "all_reduce",
                         "--sizes",
                         "3,8",
                         "--trace-sizes",
                         "8",
                         "--iters",
                         "4",
                         "--warmup",
                         "0",
                         "--device",
                         "cpu",
                         "--per-iter-trace",
                         "--trace-file",
                         small})
                .exit_code,
            0);
  const std::string calls = content(small);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), '\n'), 4);

  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--trace-ops", "all_gather"},
                                                {"--trace-sizes", "2K"},
                                                {"--aggregate-repeat"},
                                                {"--trace-limit", "-1"},
                                                {"--trace-file", "trace.txt"},
                                                {"--per-rank-file", "ranks.html"}})
    EXPECT_EQ(with(wrong).exit_code, 2) << wrong[0];
  EXPECT_EQ(run_program({"benchmark", "rccl", "--device", "cpu", "--trace-limit", "3"}).exit_code, 2);
}

TEST(Benchmarks, Memory) {
  const auto report =
      json_of({"memory", "--sizes", "1M", "--seconds", "0.001", "--device", "cpu", "--threads", "1"});
  EXPECT_EQ(report["results"].size(), 9U);
  for (const auto& line : report["results"])
    EXPECT_GT(line["bytes_per_second"].get<double>(), 0) << line["case"];
}

TEST(Benchmarks, DataAndCheckpoint) {
  const std::string experiment =
      std::string(PRIMUS_SOURCE_DIR) + "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";
  const auto data =
      json_of({"data", "--config", experiment, "--seconds", "0.01", "mock_data=true", "data_path=null",
               "train_data_path=null", "seq_length=64", "micro_batch_size=2"});
  ASSERT_EQ(data["results"].size(), 4U);
  EXPECT_EQ(data["results"][2]["case"], "read");
  EXPECT_EQ(data["results"][2]["tokens"].get<double>(), 128);
  const test::TemporaryFolder folder;
  const auto saved = json_of({"checkpoint", "--path", folder.path(), "--size", "1M", "--repeat", "2"});
  ASSERT_EQ(saved["results"].size(), 3U);
  EXPECT_TRUE(Env::posix().list(folder.path()).empty());
  const std::string missing = (folder.path() / "missing").string();
  const ProgramResult refused = run_program({"benchmark", "checkpoint", "--path", missing, "--size", "1M"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--path: folder '" + missing + "' does not exist"));
  EXPECT_FALSE(Env::posix().status(missing).has_value());
}

TEST(Benchmarks, CeilingOfAStep) {
  const auto report = json_of(
      {"train", "--config",
       std::string(PRIMUS_SOURCE_DIR) + "/examples/native/configs/CPU/llama_tiny-pretrain.yaml", "--steps",
       "2", "--warmup", "1", "--ceiling", "mock_data=true", "data_path=null", "train_data_path=null",
       "seq_length=64", "micro_batch_size=1", "global_batch_size=2", "device=cpu", "num_threads=1"});
  const auto& ceiling = report["ceiling"];
  const double seconds =
      ceiling["product_seconds"].get<double>() + ceiling["attention_seconds"].get<double>();
  EXPECT_GT(ceiling["product_seconds"].get<double>(), 0);
  EXPECT_GT(ceiling["attention_seconds"].get<double>(), 0);
  const double rate = ceiling["model_flops_per_second"].get<double>();
  const double flops =
      report["model_flops_per_second"].get<double>() * report["seconds_per_step"]["median"].get<double>();
  EXPECT_NEAR(rate * seconds / flops, 1, 1e-9);
  EXPECT_NEAR(ceiling["share"].get<double>() * rate / report["model_flops_per_second"].get<double>(), 1,
              1e-9);
}

TEST(Benchmarks, TracesOfSteps) {
  const test::TemporaryFolder folder;
  const std::string trace = folder.path() / "trace.json";
  const ProgramResult result =
      run_program({"benchmark",
                   "train",
                   "--config",
                   std::string(PRIMUS_SOURCE_DIR) + "/examples/native/configs/CPU/llama_tiny-pretrain.yaml",
                   "--steps",
                   "1",
                   "--warmup",
                   "0",
                   "--trace",
                   trace,
                   "--trace-steps",
                   "2",
                   "mock_data=true",
                   "data_path=null",
                   "train_data_path=null",
                   "seq_length=32",
                   "micro_batch_size=1",
                   "global_batch_size=2",
                   "device=cpu",
                   "num_threads=1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::map<std::string, int> names;
  std::map<int, double> ends;  // when the last event of each stream ended
  const nlohmann::json json = nlohmann::json::parse(content(trace));
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++names[event["name"]];
    if (event["cat"] == "host" || event["cat"] == "schedule") continue;
    EXPECT_GE(event["ts"].get<double>(), ends[event["tid"]] - 1e-3);  // events of one stream do not overlap
    ends[event["tid"]] = event["ts"].get<double>() + event["dur"].get<double>();
  }
  EXPECT_EQ(names["step 2"], 1);
  EXPECT_EQ(names["step 3"], 1);
  EXPECT_EQ(names["microbatch 1"], 2);
  EXPECT_EQ(names["update"], 2);
  EXPECT_GT(names["Gemm"], 0);
  EXPECT_EQ(names["AttentionForward"] % 4, 0);  // two steps with two microbatches each
  EXPECT_GT(names["AttentionForward"], 0);
}

TEST(Benchmarks, BaselinesAndReports) {
  const test::TemporaryFolder folder;
  const std::string baseline = folder.path() / "baseline.json", page = folder.path() / "report.html",
                    table = folder.path() / "table.csv";
  const auto file = [&](const std::string& name) { return (folder.path() / name).string(); };
  const std::vector<std::string> gemm{"gemm", "--shape", "64x64x64"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> words = gemm;
    words.insert(words.end(), more.begin(), more.end());
    return benchmark(words);
  };
  ASSERT_EQ(with({"--baseline", "save", baseline}).exit_code, 0);
  nlohmann::json kept = nlohmann::json::parse(content(baseline));
  // The baseline's times are made 1000 times longer, then 1000 times shorter. Noise cannot explain either
  // difference.
  for (const auto& [factor, exit_code] : {std::pair(1e3, 0), std::pair(1e-3, 1)}) {
    nlohmann::json changed = kept;
    for (auto& line : changed["results"]) {
      line["seconds"]["median"] = line["seconds"]["median"].get<double>() * factor;
      line["spread"] = 0.01;
    }
    std::ofstream(baseline) << changed;
    const ProgramResult result = with({"--output", page, "--baseline", "compare", baseline});
    EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr(exit_code == 0 ? "faster" : "slower"));
    EXPECT_THAT(content(page), HasSubstr("Compared with"));
  }
  std::ofstream(baseline) << "{}";
  EXPECT_EQ(with({"--baseline", "compare", baseline}).exit_code, 2);

  // Missing output folders are created.
  const ProgramResult deep =
      with({"--output", file("new/deep/a.csv"), "--baseline", "save", file("kept/b.json")});
  EXPECT_EQ(deep.exit_code, 0) << deep.err;
  EXPECT_TRUE(std::filesystem::exists(file("new/deep/a.csv")) &&
              std::filesystem::exists(file("kept/b.json")));
  // An output path that cannot be created is refused before measuring.
  const ProgramResult no_folder = with({"--output", baseline + "/a.csv"});
  EXPECT_EQ(no_folder.exit_code, 2);
  EXPECT_THAT(no_folder.out, Not(HasSubstr("TFLOP/s")));
  ASSERT_EQ(with({"--output", table}).exit_code, 0);
  ASSERT_EQ(with({"--output", table, "--append"}).exit_code, 0);
  const std::string lines = content(table);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1 + 2 * 3);  // one header line
}

// The variables that srun, torchrun, mpirun and this program's launcher set for their processes; % is the
// rank.
const std::map<std::string, std::string> kPlaces[] = {
    {{"SLURM_JOB_ID", "4711"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "%"}},
    {{"RANK", "%"}, {"WORLD_SIZE", "2"}},
    {{"OMPI_COMM_WORLD_RANK", "%"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
    {{"NODE_RANK", "%"}, {"NNODES", "2"}}};

ProgramResult run_concurrently(const std::map<std::string, std::string>& place, int number,
                               const std::vector<std::string>& words) {
  std::map<std::string, std::string> environment = place;
  for (auto& [name, value] : environment)
    if (value == "%") value = std::to_string(number);
  return run_program(words, {.environment = environment});
}

// Processes of one launch measure separately. Each writes its own files, so none overwrites another's.
TEST(Benchmarks, ConcurrentProcessesHaveTheirOwnFiles) {
  for (const auto& place : kPlaces) {
    const test::TemporaryFolder folder;
    const auto file = [&](const std::string& name) { return (folder.path() / name).string(); };
    const std::vector<std::string> words{"benchmark", "memory", "--sizes",  "64K",
                                         "--seconds", "0.001",  "--device", "cpu",
                                         "--threads", "1",      "--output", file("a.b.csv")};
    const auto with = [&](int number, const std::vector<std::string>& more) {
      std::vector<std::string> all = words;
      all.insert(all.end(), more.begin(), more.end());
      return run_concurrently(place, number, all);
    };
    for (const int number : {0, 1}) {
      const std::string own = std::to_string(number) + "-of-2";
      const ProgramResult saved = with(number, {"--baseline", "save", file("before.json")});
      ASSERT_EQ(saved.exit_code, 0) << saved.err;
      EXPECT_THAT(saved.err, AllOf(HasSubstr("report: " + file("a.b." + own + ".csv")),
                                   HasSubstr("baseline: " + file("before." + own + ".json"))));
      EXPECT_TRUE(std::filesystem::exists(file("a.b." + own + ".csv")));
      EXPECT_THAT(content(file("before." + own + ".json")), HasSubstr(std::to_string(number) + " of 2, on "));
    }
    EXPECT_FALSE(std::filesystem::exists(file("a.b.csv")));
    EXPECT_FALSE(std::filesystem::exists(file("before.json")));
    const std::vector<std::string> compare{"--baseline", "compare", file("before.json")};
    EXPECT_THAT(with(1, compare).out, HasSubstr("compared with " + file("before.1-of-2.json")));
    // A baseline file without a process number applies to every process.
    std::filesystem::rename(file("before.1-of-2.json"), file("before.json"));
    EXPECT_THAT(with(1, compare).out, HasSubstr("compared with " + file("before.json")));
    EXPECT_THAT(with(0, compare).out, HasSubstr("compared with " + file("before.0-of-2.json")));
    std::filesystem::remove(file("before.json"));
    const ProgramResult none = with(1, compare);
    EXPECT_EQ(none.exit_code, 2);
    EXPECT_THAT(none.err, AllOf(HasSubstr("before.1-of-2.json"), HasSubstr("before.json")));
  }
}

// Two concurrent tasks each start a job of two ranks. Each job writes files with its task's number.
TEST(Benchmarks, ConcurrentJobsHaveTheirOwnFiles) {
  const test::TemporaryFolder folder;
  const auto file = [&](const std::string& name) { return (folder.path() / name).string(); };
  for (const char* transport : {"auto", "threads"}) {
    const std::vector<std::string> words{"benchmark",
                                         "rccl",
                                         "--device",
                                         "cpu",
                                         "--nproc",
                                         "2",
                                         "--sizes",
                                         "1K",
                                         "--iters",
                                         "2",
                                         "--op",
                                         "barrier",
                                         "--transport",
                                         transport,
                                         "--output",
                                         file(transport + std::string(".json")),
                                         "--per-rank-file",
                                         file("ranks.csv"),
                                         "--per-iter-trace"};
    for (const int number : {0, 1}) {
      const ProgramResult result = run_concurrently(kPlaces[0], number, words);
      ASSERT_EQ(result.exit_code, 0) << result.err;
      const std::string own = "." + std::to_string(number) + "-of-2";
      for (const std::string& name : {transport + own + ".json", "ranks" + own + ".csv",
                                      transport + std::string("_trace") + own + ".jsonl"})
        EXPECT_TRUE(std::filesystem::exists(file(name))) << name << result.err;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(file("ranks.csv")));
}

// Only with --append, gemm-dense writes its report under AMD Primus's fixed name. The next call extends the
// file.
TEST(Benchmarks, AppendWithoutOutputContinuesAmdPrimussReport) {
  const test::TemporaryFolder folder;
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"benchmark", "gemm-dense", "--model",   "llama_tiny", "--vocab-size",
                                   "64",        "--seqlen",   "16",        "--device",   "cpu",
                                   "--threads", "1",          "--seconds", "0.001"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words, {.folder = folder.path().string()});
  };
  const std::string report = (folder.path() / "gemm-dense_report.md").string();
  EXPECT_EQ(run({}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(report));
  const ProgramResult once = run({"--append"});
  EXPECT_EQ(once.exit_code, 0) << once.err;
  EXPECT_THAT(once.err, HasSubstr("report: gemm-dense_report.md"));
  const std::size_t size = read_file(report).size();
  EXPECT_EQ(run({"--append"}).exit_code, 0);
  EXPECT_GT(read_file(report).size(), size + size / 2);
  EXPECT_EQ(run({"--append", "--output", "-"}).exit_code, 2);
}

TEST(Benchmarks, Decode) {
  const std::vector<std::string> tiny{"benchmark", "decode",   "--model",  "llama_tiny", "--vocab-size",
                                      "100",       "--device", "cpu",      "--threads",  "1",
                                      "--context", "8",        "--tokens", "5"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> words = tiny;
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  };
  const ProgramResult result = with({"--batch", "1,3", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report["suite"], "decode");
  EXPECT_THAT(report["device"].get<std::string>(), HasSubstr("llama_tiny"));
  ASSERT_EQ(report["results"].size(), 2U);
  EXPECT_EQ(report["results"][1]["case"], "batch 3, context 8");
  EXPECT_EQ(report["results"][1]["tokens"].get<double>(), 3);
  EXPECT_GT(report["copy_ceiling_bytes_per_second"].get<double>(), 0);
  EXPECT_THAT(with({"--batch", "2"}).out, HasSubstr("tokens/s"));
  EXPECT_EQ(report["dtype"], "bf16");  // the default
  const std::vector<std::vector<std::string>> refused = {
      {"--batch", "0"}, {"--warmup", "-1"}, {"--tokens", "0"}, {"--context", "0"}, {"--context", "1000000"}};
  for (const std::vector<std::string>& words : refused) {
    const ProgramResult wrong = with(words);
    EXPECT_EQ(wrong.exit_code, 2);
    EXPECT_THAT(wrong.err, testing::AllOf(HasSubstr(words[0]), HasSubstr("hint:")));
  }
}

// The default 512 prompt tokens and 68 new ones exceed the model's 512 positions, so the lengths are reduced.
TEST(Benchmarks, DecodeChoosesAContextThatFitsASmallModel) {
  const std::vector<std::string> words{"benchmark", "decode",   "--model", "llama_tiny", "--vocab-size",
                                       "100",       "--device", "cpu",     "--batch",    "1",
                                       "--threads", "1",        "--json"};
  const ProgramResult result = run_program(words);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report["results"][0]["case"], "batch 1, context 444");
  EXPECT_THAT(
      report["notes"][0].get<std::string>(),
      HasSubstr("prompts have 444 tokens instead of the default 512, because the model has 512 positions"));
  std::vector<std::string> chosen = words;
  chosen.insert(chosen.end(), {"--context", "512"});
  const ProgramResult refused = run_program(chosen);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("exceed the model's 512 positions"));
  chosen.back() = "0";
  EXPECT_EQ(run_program(chosen).exit_code, 2);
}

TEST(Benchmarks, OptionsWithoutEffectAreRefused) {
  const std::string experiment = PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";
  const std::pair<std::vector<std::string>, const char*> refused[] = {
      {{"train", "--config", experiment, "--trace-steps", "2"}, "add --trace FILE"},
      {{"collectives", "--sizes", "1K", "--min-bytes", "4K"}, "remove --sizes, or remove the others"},
      {{"decode", "--model", "/tmp", "--vocab-size", "100"}, "already sets the vocabulary size"},
      {{"decode", "--model", "qwen3_0.6B", "--vocab-size", "100"}, "already sets a vocabulary"}};
  for (const auto& [words, message] : refused) {
    std::vector<std::string> all = words;
    all.insert(all.begin(), "benchmark");
    const ProgramResult result = run_program(all);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
  }
}

TEST(Benchmarks, ImpossibleMeasurementsAreRefused) {
  const std::vector<std::vector<std::string>> refused = {
      {"gemm", "--shape", "3x4"},
      {"gemm", "--shape", "3x4x"},
      {"gemm", "--shape", "3x4x5x"},
      {"gemm", "--shape", "0x4x5"},
      {"gemm", "--shape", "9223372036854775807x2x2"},
      {"gemm", "--shape", "1048576x1048576x1048576"},
      {"gemm", "--json", "--csv"},
      {"gemm", "--seconds", "0"},
      {"gemm", "--trans_a", "1"},
      {"gemm", "--output", "report.pdf"},
      {"gemm", "--output", "report.html", "--append"},
      {"grouped-gemm", "--dtype", "fp16"},
      {"decode", "--dtype", "fp16"},
      {"memory", "--dtype", "bf16"},
      {"gemm", "--output", "-", "--csv"},
      {"gemm-deepseek", "--n-shared-experts", "-1"},
      {"strided-allgather", "--backend", "gloo"},
      {"gemm", "--baseline", "compare"},
      {"gemm", "--baseline", "keep", "x.json"},
      {"gemm", "--baseline", "compare", "/nowhere/x.json"},
      {"collectives", "--op", "all_redoce"},
      {"collectives", "--sizes", "1K,,2K"},
      {"collectives", "--sizes", "64T"},
      {"collectives", "--min-bytes", "2K", "--max-bytes", "1K"},
      {"collectives", "--nproc", "1"},
      {"collectives", "--nproc", "0"},
      {"collectives", "--iters", "0"},
      {"collectives", "--nnodes", "2"},
      {"memory", "--sizes", "0"},
      {"memory", "--sizes", "9223372036854775807G"},
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
    all.insert(all.begin() + 2, {"--device", "cpu"});
    const ProgramResult result = run_program(all);
    EXPECT_EQ(result.exit_code, 2) << words[0] << " " << words.back() << result.err;
  }
}

}  // namespace
}  // namespace primus
