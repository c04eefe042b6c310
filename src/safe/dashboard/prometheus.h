// Writes the newest values of each run in the text format for Prometheus, version 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats/). Pure function.
#pragma once

#include <map>
#include <string>

#include "safe/dashboard/workspace.h"

namespace primus::dashboard {

// Metrics without a value, such as the goodput of a run that is not supervised, have no line.
std::string prometheus_text(const std::map<std::string, Run>& runs);

}  // namespace primus::dashboard
