// The table of a report and its rates. All output formats use this table.
#pragma once

#include <string>
#include <vector>

#include "bench/report.h"

namespace primus {

struct Rate {
  double BenchmarkResult::*amount;  // amount per call
  const char* json;                 // "bus_bytes"
  const char* title;                // "bus GB/s"
  double scale;                     // factor that converts an amount per second to the title's unit
  int digits;                       // digits after the decimal point

  double value(const BenchmarkResult& result) const { return result.*amount / result.timing.median * scale; }
  std::string text(const BenchmarkResult& result) const;  // returns "" if the rate does not apply to `result`
};

// Returns the rates that apply to at least one result.
std::vector<Rate> rates_of(const BenchmarkReport& report);

// The layout of the table: case, times, rates that apply, and shares if ceilings were measured.
struct ReportTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};
ReportTable table_of(const BenchmarkReport& report);

}  // namespace primus
