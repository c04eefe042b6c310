#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text/json_text.h"
#include "bench/report_table.h"

namespace primus {
namespace {

double median_of_sorted(const std::vector<double>& sorted) { return sorted[sorted.size() / 2]; }

std::string heading(const BenchmarkReport& report) {
  std::string text = fmt::format("{} | {}", report.device, report.suite);
  if (!report.dtype.empty()) text += " | " + report.dtype;
  if (!report.place.empty()) text += " | " + report.place;
  return text;
}

std::string ceilings(const BenchmarkReport& report) {
  if (report.gemm_ceiling <= 0 || report.copy_ceiling <= 0) return {};
  return fmt::format("for reference: a large square product {:.3f} TFLOP/s, a copy {:.1f} GB/s",
                     report.gemm_ceiling * 1e-12, report.copy_ceiling * 1e-9);
}

nlohmann::ordered_json head_of(const BenchmarkReport& report) {
  nlohmann::ordered_json head{{"suite", report.suite}, {"device", report.device}, {"dtype", report.dtype}};
  if (!report.place.empty()) head["place"] = report.place;
  return head;
}

std::vector<std::string> remarks(const BenchmarkReport& report) {
  std::vector<std::string> lines = report.notes;
  if (std::string note = noise_note(report); !note.empty()) lines.push_back(std::move(note));
  return lines;
}

}  // namespace

std::vector<Rate> rates_of(const BenchmarkReport& report) {
  constexpr Rate kAll[] = {{&BenchmarkResult::flops, "flops", "TFLOP/s", 1e-12, 3},
                           {&BenchmarkResult::bytes, "bytes", "GB/s", 1e-9, 2},
                           {&BenchmarkResult::bus_bytes, "bus_bytes", "bus GB/s", 1e-9, 2},
                           {&BenchmarkResult::tokens, "tokens", "tokens/s", 1, 0}};
  std::vector<Rate> found;
  for (const Rate& rate : kAll)
    if (std::any_of(report.results.begin(), report.results.end(),
                    [&](const BenchmarkResult& r) { return r.*rate.amount > 0; }))
      found.push_back(rate);
  return found;
}

ReportTable table_of(const BenchmarkReport& report) {
  const std::vector<Rate> rates = rates_of(report);
  bool ranks = false;
  for (const BenchmarkResult& r : report.results) ranks |= !r.rank_timings.empty();
  ReportTable table;
  table.head = {"case", "us", "fastest us", "p95 us", "repeats"};
  for (const Rate& rate : rates) table.head.emplace_back(rate.title);
  if (report.gemm_ceiling > 0) table.head.emplace_back("product");
  if (report.copy_ceiling > 0) table.head.emplace_back("copy");
  if (ranks) table.head.emplace_back("us by rank");
  for (const BenchmarkResult& r : report.results) {
    std::vector<std::string> row{
        r.name, fmt::format("{:.1f}", r.timing.median * 1e6), fmt::format("{:.1f}", r.timing.fastest * 1e6),
        fmt::format("{:.1f}", r.timing.p95 * 1e6), fmt::format("{:.1f} %", 100 * r.timing.spread)};
    for (const Rate& rate : rates) row.push_back(rate.text(r));
    const auto share = [&](double amount, double ceiling) {
      if (ceiling > 0)
        row.push_back(amount > 0 ? fmt::format("{:.1f} %", 100 * amount / r.timing.median / ceiling) : "");
    };
    share(r.flops, report.gemm_ceiling);
    share(r.bytes, report.copy_ceiling);
    if (ranks) {
      std::string by_rank;
      for (const Timing& timing : r.rank_timings)
        by_rank += fmt::format("{}{:.1f}", by_rank.empty() ? "" : " ", timing.median * 1e6);
      row.push_back(by_rank);
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string Rate::text(const BenchmarkResult& result) const {
  return result.*amount > 0 ? fmt::format("{:.{}f}", value(result), digits) : "";
}

Timing summarize(std::vector<double> samples) {
  constexpr std::size_t kParts = 5;
  Timing timing{.samples = static_cast<std::int64_t>(samples.size())};
  const std::size_t parts = std::min(kParts, samples.size());
  double low = INFINITY, high = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    std::vector<double> values(
        samples.begin() + static_cast<std::ptrdiff_t>(samples.size() * part / parts),
        samples.begin() + static_cast<std::ptrdiff_t>(samples.size() * (part + 1) / parts));
    std::sort(values.begin(), values.end());
    low = std::min(low, median_of_sorted(values)), high = std::max(high, median_of_sorted(values));
  }
  std::sort(samples.begin(), samples.end());
  timing.median = median_of_sorted(samples);
  timing.fastest = samples.front(), timing.slowest = samples.back();
  // The smallest sample such that at least 95 % of all samples are not larger.
  timing.p95 = samples[(samples.size() * 95 + 99) / 100 - 1];
  timing.spread = (high - low) / timing.median;
  return timing;
}

std::string noise_note(const BenchmarkReport& report) {
  const BenchmarkResult* worst = nullptr;
  int noisy = 0;
  for (const BenchmarkResult& r : report.results) {
    if (!r.timing.noisy()) continue;
    ++noisy;
    if (!worst || r.timing.spread > worst->timing.spread) worst = &r;
  }
  if (!worst) return {};
  return fmt::format(
      "noisy machine: {} of {} results vary by more than {:.0f} % (worst: {}, {:.0f} %); stop other "
      "processes, or measure longer",
      noisy, report.results.size(), 100 * Timing::kRepeats, worst->name, 100 * worst->timing.spread);
}

std::string to_text(const BenchmarkReport& report) {
  const ReportTable table = table_of(report);
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < table.head.size(); ++c) {
    std::size_t width = table.head[c].size();
    for (const auto& row : table.rows) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  std::string text = heading(report) + "\n";
  if (const std::string line = ceilings(report); !line.empty()) text += line + "\n";
  text += "\n";
  const auto add = [&](const std::vector<std::string>& row) {
    std::string line = fmt::format("{:<{}}", row[0], widths[0]);
    for (std::size_t c = 1; c < row.size(); ++c) line += fmt::format("  {:>{}}", row[c], widths[c]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  add(table.head);
  for (const auto& row : table.rows) add(row);
  for (const std::string& line : remarks(report)) text += "\nnote: " + line + "\n";
  return text;
}

nlohmann::ordered_json to_json(const BenchmarkReport& report) {
  nlohmann::ordered_json json = head_of(report);
  if (report.gemm_ceiling > 0) json["gemm_ceiling_flops_per_second"] = report.gemm_ceiling;
  if (report.copy_ceiling > 0) json["copy_ceiling_bytes_per_second"] = report.copy_ceiling;
  json["noisy"] = !noise_note(report).empty();
  json["notes"] = remarks(report);
  json["results"] = nlohmann::ordered_json::array();
  const std::vector<Rate> rates = rates_of(report);
  for (const BenchmarkResult& r : report.results) {
    nlohmann::ordered_json line{{"case", r.name},
                                {"seconds",
                                 {{"median", r.timing.median},
                                  {"min", r.timing.fastest},
                                  {"p95", r.timing.p95},
                                  {"max", r.timing.slowest}}},
                                {"spread", r.timing.spread},
                                {"samples", r.timing.samples},
                                {"calls_per_sample", r.calls}};
    if (r.size > 0) line["size_bytes"] = r.size;
    for (const Rate& rate : rates) {
      if (!(r.*rate.amount > 0)) continue;
      line[rate.json] = r.*rate.amount;
      line[std::string(rate.json) + "_per_second"] = r.*rate.amount / r.timing.median;
    }
    if (report.gemm_ceiling > 0 && r.flops > 0)
      line["share_of_gemm_ceiling"] = r.flops / r.timing.median / report.gemm_ceiling;
    if (report.copy_ceiling > 0 && r.bytes > 0)
      line["share_of_copy_ceiling"] = r.bytes / r.timing.median / report.copy_ceiling;
    if (r.composed_seconds > 0) {
      line["composed_seconds"] = r.composed_seconds;
      line["share_of_composed"] = r.composed_seconds / r.timing.median;
    }
    if (!r.rank_timings.empty()) {
      line["rank_median_seconds"] = nlohmann::ordered_json::array();
      for (const Timing& timing : r.rank_timings) line["rank_median_seconds"].push_back(timing.median);
    }
    json["results"].push_back(std::move(line));
  }
  return json;
}

std::string to_json_lines(const BenchmarkReport& report) {
  std::string text;
  const nlohmann::ordered_json whole = to_json(report);
  for (const nlohmann::ordered_json& result : whole["results"]) {
    nlohmann::ordered_json line = head_of(report);
    line.update(result);
    text += json_text(line, -1) + "\n";
  }
  return text;
}

std::string to_csv(const BenchmarkReport& report, char separator) {
  const std::vector<Rate> rates = rates_of(report);
  std::string text;
  const auto add = [&](const std::string& cell) { (text += cell) += separator; };
  const auto quoted = [](const std::string& name) {
    std::string result = "\"";
    for (const char c : name) result += c == '"' ? std::string("\"\"") : std::string(1, c);
    return result + '"';
  };
  for (const char* const title :
       {"suite", "device", "dtype", "case", "seconds", "fastest_seconds", "p95_seconds"})
    add(title);
  text += "spread";
  for (const Rate& rate : rates) text += fmt::format("{}{}_per_second", separator, rate.json);
  if (report.gemm_ceiling > 0) text += fmt::format("{}gemm_ceiling_flops_per_second", separator);
  if (report.copy_ceiling > 0) text += fmt::format("{}copy_ceiling_bytes_per_second", separator);
  text += '\n';
  for (const BenchmarkResult& r : report.results) {
    for (const std::string& cell : {report.suite, quoted(report.device), report.dtype, quoted(r.name)})
      add(cell);
    for (const double seconds : {r.timing.median, r.timing.fastest, r.timing.p95})
      add(fmt::format("{:.9g}", seconds));
    text += fmt::format("{:.4g}", r.timing.spread);
    for (const Rate& rate : rates) {
      text += separator;
      if (r.*rate.amount > 0) text += fmt::format("{:.6g}", r.*rate.amount / r.timing.median);
    }
    if (report.gemm_ceiling > 0) text += fmt::format("{}{:.6g}", separator, report.gemm_ceiling);
    if (report.copy_ceiling > 0) text += fmt::format("{}{:.6g}", separator, report.copy_ceiling);
    text += '\n';
  }
  return text;
}

std::string to_markdown(const BenchmarkReport& report) {
  const ReportTable table = table_of(report);
  std::string text = heading(report) + ".\n\n";
  if (const std::string line = ceilings(report); !line.empty()) text += line + ".\n\n";
  const auto row = [&](const std::vector<std::string>& texts) {
    for (const std::string& one : texts) text += fmt::format("| {} ", one);
    text += "|\n";
  };
  row(table.head);
  for (std::size_t i = 0; i < table.head.size(); ++i) text += i == 0 ? "|---" : "|---:";
  text += "|\n";
  for (const auto& cells : table.rows) row(cells);
  for (const std::string& line : remarks(report)) text += "\nNote: " + line + ".\n";
  return text;
}

}  // namespace primus
