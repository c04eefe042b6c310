// One HTML page with charts as SVG: no script, no network, no other file; light and dark, and fit to print.
// Texts are escaped here, so callers pass them as they are. Pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace primus {

// For text between tags and in attributes: markup and control characters are escaped.
std::string html_escaped(const std::string& text);

// A whole page. `body` is HTML; `generator` says which command made it.
std::string html_page(const std::string& title, const std::string& generator, const std::string& body);

// A table of texts, which are escaped.
std::string html_table(const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows);

struct ChartBar {
  std::string label, text;
  double value = 0;
  double wanted = 0;  // a mark where the threshold is; 0: none
};
// Horizontal bars; those below their mark are red. Empty without a value above 0.
std::string bar_chart(const std::string& title, const std::vector<ChartBar>& bars);

struct ChartLine {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending; both above 0
  bool joined = true;                             // false: points alone
};
struct ChartAxes {
  std::string x, y;           // what they show, with the unit
  bool binary_sizes = false;  // x: bytes, written as 1 KiB, 4 MiB ...
  bool log_y = false;
};
// Lines over a logarithmic x, with a legend. Empty where there is no point.
std::string line_chart(const std::string& title, const ChartAxes& axes, const std::vector<ChartLine>& lines);

}  // namespace primus
