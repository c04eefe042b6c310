#include "base/text/html_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/terminal/terminal.h"

namespace primus {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --pass: #2a8a3e; --warn: #b06f00; --fail: #c62828; --skip: #888; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem; border-bottom: 1px solid #8884; }
.pass { color: var(--pass); } .warn { color: var(--warn); } .fail { color: var(--fail); } .skip { color: var(--skip); }
.verdict { font-weight: 600; } svg { max-width: 100%; height: auto; } details { margin: .5rem 0; }
svg text { fill: currentColor; font-size: 12px; }
@media print { body { margin: 0; max-width: none; font-size: 10px; } details > * { display: block; } }
)";

// Colors that are distinguishable in print and with color-vision deficiency.
constexpr const char* kColors[] = {"#3b7dd8", "#e07b00", "#2a8a3e", "#c62828",
                                   "#8e44ad", "#00838f", "#7f6000", "#ad1457"};

std::string axis_number(double value, bool binary) {
  if (!binary) return fmt::format("{:.4g}", value);
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return fmt::format("{:.4g} {}", value, kUnits[unit]);
}

// A linear or logarithmic scale from values to positions.
struct Scale {
  double low, high, from, to;
  bool log;
  double operator()(double value) const {
    const auto of = [this](double v) { return log ? std::log2(v) : v; };
    const double range = of(high) - of(low);
    return from + (to - from) * (range > 0 ? (of(value) - of(low)) / range : 0.5);
  }
  // Returns round numbers within the scale, at most about `maximum`.
  std::vector<double> ticks(int maximum) const {
    std::vector<double> values;
    if (!log) {
      const double rough = (high - low) / maximum, power = std::pow(10.0, std::floor(std::log10(rough)));
      const double step = power * (rough / power > 5   ? 10
                                   : rough / power > 2 ? 5
                                   : rough / power > 1 ? 2
                                                       : 1);
      for (double v = std::ceil(low / step) * step; v <= high * (1 + 1e-9); v += step) values.push_back(v);
      return values;
    }
    const double first = std::ceil(std::log2(low) - 1e-9), last = std::floor(std::log2(high) + 1e-9);
    const double step = std::max(1.0, std::ceil((last - first) / maximum));
    for (double v = first; v <= last; v += step) values.push_back(std::exp2(v));
    return values;
  }
};

}  // namespace

std::string html_escaped(const std::string& text) {
  std::string result;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string html_page(const std::string& title, const std::string& generator, const std::string& body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n"
      "<meta name=\"generator\" content=\"{1}\">\n<style>{2}</style></head><body>\n<h1>{0}</h1>\n"
      "{3}</body></html>\n",
      html_escaped(title), html_escaped(generator), kStyle, body);
}

std::string html_table(const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows) {
  std::string text = "<table><tr>";
  for (const std::string& cell : head) text += "<th>" + html_escaped(cell);
  text += "</tr>\n";
  for (const auto& row : rows) {
    text += "<tr>";
    for (const std::string& cell : row) text += "<td>" + html_escaped(cell);
    text += "</tr>\n";
  }
  return text + "</table>\n";
}

std::string bar_chart(const std::string& title, const std::vector<ChartBar>& bars) {
  double maximum = 0;
  for (const ChartBar& bar : bars) maximum = std::max({maximum, bar.value, bar.wanted});
  if (!(maximum > 0)) return {};
  constexpr int kLeft = 260, kWidth = 520, kRow = 20;
  const int height = 30 + kRow * static_cast<int>(bars.size());
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\"><text x=\"0\" y=\"16\" "
      "font-weight=\"600\">{}</text>",
      kLeft + kWidth + 140, height, html_escaped(title), html_escaped(title));
  int y = 26;
  for (const ChartBar& bar : bars) {
    const double width = kWidth * bar.value / maximum;
    const bool low = bar.wanted > 0 && bar.value < bar.wanted;
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", kLeft - 8, y + 13,
                       html_escaped(bar.label));
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>", kLeft, y + 2,
                       std::max(width, 1.0), kRow - 4, low ? "#c62828" : "#3b7dd8");
    if (bar.wanted > 0) {
      const double x = kLeft + kWidth * bar.wanted / maximum;
      svg += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#888\" stroke-width=\"2\"/>", x,
          y, y + kRow);
    }
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\">{}</text>", kLeft + width + 8, y + 13,
                       html_escaped(bar.text));
    y += kRow;
  }
  return svg + "</svg>\n";
}

std::string line_chart(const std::string& title, const ChartAxes& axes, const std::vector<ChartLine>& lines) {
  Scale x{.low = INFINITY, .high = 0, .from = 70, .to = 690, .log = true};
  Scale y{.low = INFINITY, .high = 0, .from = 320, .to = 30, .log = axes.log_y};
  for (const ChartLine& line : lines) {
    for (const auto& [at, value] : line.points) {
      x.low = std::min(x.low, at), x.high = std::max(x.high, at);
      y.low = std::min(y.low, value), y.high = std::max(y.high, value);
    }
  }
  if (!(x.high > 0 && y.high > 0 && x.low > 0 && std::isfinite(y.high))) return {};
  if (!axes.log_y) y.low = 0;
  if (x.low == x.high) x.low /= 2, x.high *= 2;
  if (y.low == y.high) y.low /= 2, y.high *= 2;
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 960 {1}\" role=\"img\" aria-label=\"{0}\"><text x=\"0\" y=\"16\" "
      "font-weight=\"600\">{0}</text>",
      html_escaped(title), std::max(370, 50 + 18 * static_cast<int>(lines.size())));
  for (const double tick : y.ticks(6)) {
    svg +=
        fmt::format("<line x1=\"70\" x2=\"690\" y1=\"{0:.1f}\" y2=\"{0:.1f}\" stroke=\"#8883\"/>", y(tick));
    svg += fmt::format("<text x=\"62\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", y(tick) + 4,
                       axis_number(tick, false));
  }
  for (const double tick : x.ticks(8)) {
    svg +=
        fmt::format("<line y1=\"30\" y2=\"320\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" stroke=\"#8883\"/>", x(tick));
    svg += fmt::format("<text x=\"{:.1f}\" y=\"338\" text-anchor=\"middle\">{}</text>", x(tick),
                       axis_number(tick, axes.binary_sizes));
  }
  svg += fmt::format("<text x=\"380\" y=\"360\" text-anchor=\"middle\">{}</text>", html_escaped(axes.x));
  svg += fmt::format("<text x=\"690\" y=\"16\" text-anchor=\"end\">{}</text>", html_escaped(axes.y));
  int legend = 40;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const char* const color = kColors[i % std::size(kColors)];
    std::string points;
    for (const auto& [at, value] : lines[i].points) {
      points += fmt::format("{:.1f},{:.1f} ", x(at), y(value));
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>", x(at), y(value), color);
    }
    if (lines[i].joined)
      svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>", points,
                         color);
    svg +=
        fmt::format("<rect x=\"704\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/>", legend - 10, color);
    svg += fmt::format("<text x=\"722\" y=\"{}\">{}</text>", legend, html_escaped(lines[i].name));
    legend += 18;
  }
  return svg + "</svg>\n";
}

}  // namespace primus
