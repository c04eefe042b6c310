// The report of preflight, in four forms: for a terminal, Markdown, one HTML page that needs nothing else
// (and prints to PDF), and JSON. Free functions without state. Text that came from machines is escaped.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/terminal/terminal.h"
#include "safe/preflight/finding.h"

namespace primus::preflight {

struct Report {
  std::string title;      // "Preflight of 2 nodes"
  std::string generated;  // when, for people
  std::string version;    // of primus
  std::vector<std::string> notes;
  std::vector<NodeReport> nodes;
  std::vector<Finding> cluster;  // what a comparison of the nodes found
  double seconds = 0;

  // Of all nodes and of the comparison. With no node at all: kFail.
  Verdict verdict() const;
  bool has_stuck_threads() const;
};

struct Tally {
  int passed = 0, skipped = 0, warned = 0, failed = 0;
};
Tally tally_of(const Report& report);

// Warnings and failures with their fixes, measurements, and one line for each category; with `all`, every
// check.
std::string to_text(const Report& report, const Terminal& terminal, bool all);
std::string to_markdown(const Report& report);
// `plots`: measurements over sizes and machines as charts.
std::string to_html(const Report& report, bool plots);
nlohmann::ordered_json to_json(const Report& report);

}  // namespace primus::preflight
