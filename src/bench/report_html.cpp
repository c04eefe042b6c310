#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text/html_page.h"
#include "bench/report.h"
#include "bench/report_table.h"

namespace primus {
namespace {

// Plots FLOP/s over FLOPs per byte, below the two ceilings measured in the same run.
std::string roofline(const BenchmarkReport& report) {
  if (!(report.gemm_ceiling > 0 && report.copy_ceiling > 0)) return {};
  ChartLine roof{.name = "measured ceilings", .points = {}},
      cases{.name = "cases", .points = {}, .joined = false};
  const double ridge = report.gemm_ceiling / report.copy_ceiling;
  double low = ridge / 8, high = ridge * 8;
  for (const BenchmarkResult& r : report.results) {
    if (!(r.flops > 0 && r.bytes > 0)) continue;
    const double intensity = r.flops / r.bytes;
    cases.points.emplace_back(intensity, r.flops / r.timing.median * 1e-12);
    low = std::min(low, intensity), high = std::max(high, intensity);
  }
  if (cases.points.empty()) return {};
  for (const double at : {low, ridge, high})
    roof.points.emplace_back(at, std::min(report.gemm_ceiling, at * report.copy_ceiling) * 1e-12);
  std::sort(cases.points.begin(), cases.points.end());
  return line_chart("Roofline", {.x = "FLOPs per byte", .y = "TFLOP/s", .log_y = true}, {roof, cases});
}

// Returns one chart per rate. Cases with sizes are lines over the sizes, other cases are bars.
std::string charts(const BenchmarkReport& report) {
  std::string text;
  for (const Rate& rate : rates_of(report)) {
    std::vector<ChartLine> lines;
    std::vector<ChartBar> bars;
    for (const BenchmarkResult& r : report.results) {
      if (!(r.*rate.amount > 0)) continue;
      if (r.size > 0 && !r.group.empty()) {
        auto line =
            std::find_if(lines.begin(), lines.end(), [&](const ChartLine& l) { return l.name == r.group; });
        if (line == lines.end()) line = lines.insert(lines.end(), ChartLine{.name = r.group, .points = {}});
        line->points.emplace_back(r.size, rate.value(r));
      } else {
        bars.push_back({.label = r.name, .text = rate.text(r), .value = rate.value(r)});
      }
    }
    for (ChartLine& line : lines) std::sort(line.points.begin(), line.points.end());
    text += line_chart(rate.title, {.x = "size", .y = rate.title, .binary_sizes = true}, lines);
    text += bar_chart(rate.title, bars);
  }
  return text;
}

}  // namespace

std::string to_html(const BenchmarkReport& report, const BaselineComparison* comparison,
                    const std::string& when, const std::string& version) {
  std::string body =
      fmt::format("<p>{}{}, {}, primus {}</p>\n", html_escaped(report.device),
                  report.dtype.empty() ? "" : ", " + report.dtype, html_escaped(when), html_escaped(version));
  if (report.gemm_ceiling > 0 && report.copy_ceiling > 0)
    body += fmt::format("<p>For reference: a large square product {:.3f} TFLOP/s, a copy {:.1f} GB/s.</p>\n",
                        report.gemm_ceiling * 1e-12, report.copy_ceiling * 1e-9);
  for (const std::string& note : report.notes) body += fmt::format("<p>Note: {}.</p>\n", html_escaped(note));
  if (const std::string note = noise_note(report); !note.empty())
    body += fmt::format("<p class=\"warn\">Note: {}.</p>\n", html_escaped(note));
  if (comparison) {
    std::vector<std::vector<std::string>> rows;
    for (const BaselineCase& c : comparison->cases) {
      const bool both = c.before > 0 && c.now > 0;
      rows.push_back({c.name, fmt::format("{:.1f}", c.before * 1e6), fmt::format("{:.1f}", c.now * 1e6),
                      both ? fmt::format("{:+.1f} %", 100 * (c.now / c.before - 1)) : "",
                      both ? fmt::format("{:.1f} %", 100 * c.limit) : "", name_of(c.verdict)});
    }
    body += fmt::format("<h2>Compared with {}</h2>\n", html_escaped(comparison->source));
    body += html_table({"case", "before us", "now us", "change", "noise", "verdict"}, rows);
  }
  const std::string drawn = roofline(report) + charts(report);
  if (!drawn.empty()) body += "<h2>Plots</h2>\n" + drawn;
  const ReportTable table = table_of(report);
  body += "<h2>Results</h2>\n" + html_table(table.head, table.rows);
  return html_page(fmt::format("Benchmark {}", report.suite), "primus benchmark " + report.suite, body);
}

}  // namespace primus
