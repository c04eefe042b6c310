// A report on runs: their curves, their status, and the settings in which they differ. It is JSON, or one
// HTML page that needs no network and no other file. Free functions without state.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lm/events/iteration.h"
#include "lm/report/curves.h"
#include "lm/report/run_list.h"

namespace primus {

// The data of one run in the report. Its size is bounded for runs of any length.
struct RunHistory {
  RunStatus status;
  std::string name;    // name of the run in the report
  Curves metrics;      // curves by key of metrics.jsonl; metrics_line.h defines the keys for experts
  Curves evaluations;  // curves by data set: "validation" and "test"
  double seconds = 0;  // total duration of training steps in seconds, without evaluations and checkpoints
  // Step and loss of the evaluation with the lowest loss.
  std::optional<std::pair<std::int64_t, double>> best_validation = {};
  std::map<std::string, std::string> settings = {};  // settings of experiment.yaml: "lr" -> "0.0003"
  std::vector<SampleRecord> texts = {};              // the newest texts that the model wrote
  std::vector<std::string> notes = {};               // one sentence for each damaged file
};

inline constexpr std::size_t kReportBuckets = 1200;

// Reads the run in `folder`. Damaged data is skipped, with a note. `buckets`: the maximum number of points of
// a curve; must be even.
RunHistory read_history(const Path& folder, std::size_t buckets = kReportBuckets);

// Sets the name of each run to those components of its folder path that differ between runs.
void name_runs(std::vector<RunHistory>& runs);

// Returns the report as JSON. `generated`: date and time to display.
nlohmann::ordered_json report_json(const std::vector<RunHistory>& runs, const std::string& generated,
                                   const std::string& version);
// Returns the HTML page with the report. Text from files is embedded only as JSON and escaped, so that it
// cannot end the script element.
std::string report_page(const nlohmann::ordered_json& report);

}  // namespace primus
