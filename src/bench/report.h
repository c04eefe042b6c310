// Results of a benchmark as plain data, and their output as text, JSON, CSV, Markdown and an HTML page with
// plots. Every suite of `primus benchmark` returns such a report. Pure functions.
//
// Times are seconds per call. A figure is the median of its samples. The repeatability of a figure is
// estimated from the same run. The samples are split by time into five parts. `spread` is the relative range
// of the parts' medians. A figure with a spread above 5 % is called noisy.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace primus {

struct Timing {
  double median = 0, fastest = 0, slowest = 0, p95 = 0;
  double spread = 0;  // (largest - smallest) / median of the parts' medians; 0 for fewer than two samples
  std::int64_t samples = 0;

  static constexpr double kRepeats = 0.05;
  bool noisy() const { return spread > kRepeats; }
};
// Computes the statistics of `samples`, which are in the order of measurement: at least one, each above 0.
Timing summarize(std::vector<double> samples);

struct BenchmarkResult {
  std::string name;   // name of the case, unique in its report: "forward 8192x28672x4096"
  std::string group;  // cases of a group form one line of a plot over `size`; empty: no plot
  double size = 0;    // bytes
  Timing timing;
  std::int64_t calls = 1;  // calls per sample
  // Amounts per call; 0: not applicable. `bytes` counts each operand and result once.
  double flops = 0, bytes = 0;
  double bus_bytes = 0;  // for a collective: bytes over a rank's busiest link
  double tokens = 0;
  // Seconds of only the matrix products, attention and delta rules of a call, each timed separately; 0: not
  // measured.
  double composed_seconds = 0;
  std::vector<Timing> rank_timings = {};  // indexed by rank; empty: not requested
};

struct BenchmarkReport {
  std::string suite;       // "gemm", "collectives"
  std::string device;      // the device and other conditions that affect figures: "cpu: 2 threads, avx512 | 4
                           // ranks, shared memory"
  std::string dtype;       // empty: does not apply
  std::string place = {};  // the user's name for the place where the benchmark ran; empty: unknown
  // FLOP/s of a large square product of this type, and bytes/s (read plus written) of a large copy, both
  // measured in the same run; 0: not measured.
  double gemm_ceiling = 0, copy_ceiling = 0;
  std::vector<BenchmarkResult> results;
  std::vector<std::string> notes;  // notes about omitted cases, with reasons
  // Output of a suite that has its own format; empty for other suites. to_text() and to_json() return this
  // output unchanged.
  std::string own_text = {}, own_json = {};
};

// Returns a sentence about noisy figures; empty if no figure is noisy.
std::string noise_note(const BenchmarkReport& report);

std::string to_text(const BenchmarkReport& report);
nlohmann::ordered_json to_json(const BenchmarkReport& report);
// Returns one JSON object per result, with suite, device and type.
std::string to_json_lines(const BenchmarkReport& report);
std::string to_csv(const BenchmarkReport& report, char separator = ',');
std::string to_markdown(const BenchmarkReport& report);

// --- Baselines. A baseline is an earlier report to compare with.

struct BaselineCase {
  enum class Verdict : std::uint8_t { kSame, kFaster, kSlower, kNew, kGone };
  std::string name;
  double before = 0, now = 0;  // seconds; 0: no such case
  double limit = 0;            // relative change that noise can explain
  Verdict verdict = Verdict::kSame;
};
struct BaselineComparison {
  std::string source;  // the name of the baseline's file
  std::vector<BaselineCase> cases;
  bool slower() const;
};
const char* name_of(BaselineCase::Verdict verdict);  // "slower"

// Compares with `baseline`, the JSON of an earlier report. A case is slower if its median grew by more than
// the sum of both spreads and by more than 5 %. Throws Error(kInvalid) for a file that is not a report, for a
// report of another suite, device or type, and for a report without a common case.
BaselineComparison compare_with_baseline(const BenchmarkReport& report, const std::string& baseline,
                                         const std::string& source);
std::string to_text(const BaselineComparison& comparison);
nlohmann::ordered_json to_json(const BaselineComparison& comparison);

// Returns a page with the table, plots of rates over sizes, and a roofline if FLOPs and ceilings are known.
// `comparison` may be null; `when`: local time for display.
std::string to_html(const BenchmarkReport& report, const BaselineComparison* comparison,
                    const std::string& when, const std::string& version);

}  // namespace primus
