// A report of runs: their curves, what became of them, and what their settings differ in, as JSON or as one
// HTML page that needs nothing else: no network, no other file. Free functions without state.
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

// What a report keeps of one run, however long it is.
struct RunHistory {
  RunStatus status;
  std::string name;    // as the report calls it
  Curves metrics;      // by key of metrics.jsonl; experts as metrics_line.h names them
  Curves evaluations;  // by data set: "validation", "test"
  double seconds = 0;  // of training steps, evaluations and checkpoints not counted
  std::optional<std::pair<std::int64_t, double>> best_validation = {};  // step and loss
  std::map<std::string, std::string> settings = {};  // of experiment.yaml: "lr" -> "0.0003"
  std::vector<std::string> notes = {};               // what could not be read
};

inline constexpr std::size_t kReportBuckets = 1200;

// The run in `folder`. What is damaged is noted, and the rest is read. At most `buckets` (even) places of a
// curve are kept.
RunHistory read_history(const Path& folder, std::size_t buckets = kReportBuckets);

// Names the runs by what their folders do not have in common.
void name_runs(std::vector<RunHistory>& runs);

// `generated`: when, as text for people.
nlohmann::ordered_json report_json(const std::vector<RunHistory>& runs, const std::string& generated,
                                   const std::string& version);
// The page around it. Text from files stands in it as JSON only, and cannot end the element it is in.
std::string report_page(const nlohmann::ordered_json& report);

}  // namespace primus
