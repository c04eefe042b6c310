// A report of runs: their curves, their status, and the settings in which they differ, as JSON or as one
// self-contained HTML page (no network, no other file). Free functions without state.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lm/report/curves.h"
#include "lm/report/run_list.h"

namespace primus {

// The report's data of one run, bounded for runs of any length.
struct RunHistory {
  RunStatus status;
  std::string name;    // name of the run in the report
  Curves metrics;      // curves by key of metrics.jsonl; metrics_line.h lists the keys for experts
  Curves evaluations;  // curves by data set: "validation", "test"
  double seconds = 0;  // duration of training steps, without evaluations and checkpoints
  // Step and loss of the best evaluation.
  std::optional<std::pair<std::int64_t, double>> best_validation = {};
  std::map<std::string, std::string> settings = {};  // settings of experiment.yaml: "lr" -> "0.0003"
  std::vector<std::string> notes = {};               // one sentence for each damaged part
};

inline constexpr std::size_t kReportBuckets = 1200;

// Reads the run in `folder`. Adds a note for each damaged part and reads the rest. Keeps at most `buckets`
// (even) points of a curve.
RunHistory read_history(const Path& folder, std::size_t buckets = kReportBuckets);

// Names each run by the part of its folder path that differs from the others.
void name_runs(std::vector<RunHistory>& runs);

// `generated`: date and time for display.
nlohmann::ordered_json report_json(const std::vector<RunHistory>& runs, const std::string& generated,
                                   const std::string& version);
// Returns the HTML page with the report. Text from files is embedded only as JSON and escaped, so that it
// cannot end the script element.
std::string report_page(const nlohmann::ordered_json& report);

}  // namespace primus
