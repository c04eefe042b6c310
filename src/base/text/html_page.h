// A self-contained HTML page with SVG charts: no scripts, no network, no other files. Supports light and dark
// mode and printing. The functions escape texts; callers pass unescaped texts. Pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace primus {

// Escapes markup and control characters, for text between tags and in attributes.
std::string html_escaped(const std::string& text);

// Returns a complete page. `body` is HTML; `generator` names the command that made it.
std::string html_page(const std::string& title, const std::string& generator, const std::string& body);

// Returns a table of texts, which are escaped.
std::string html_table(const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows);

struct ChartBar {
  std::string label, text;
  double value = 0;
  double wanted = 0;  // position of a threshold mark; 0: none
};
// Returns horizontal bars; bars below their mark are red. Returns "" if no value is positive.
std::string bar_chart(const std::string& title, const std::vector<ChartBar>& bars);

struct ChartLine {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending; both above 0
  bool joined = true;                             // false: draw only points
};
struct ChartAxes {
  std::string x, y;           // axis labels with units
  bool binary_sizes = false;  // x is in bytes, labeled 1 KiB, 4 MiB ...
  bool log_y = false;
};
// Returns lines over a logarithmic x axis, with a legend. Returns "" if there are no points.
std::string line_chart(const std::string& title, const ChartAxes& axes, const std::vector<ChartLine>& lines);

}  // namespace primus
