// The table of a report, and the rates that it shows, each once: for every form of the report.
#pragma once

#include <string>
#include <vector>

#include "bench/report.h"

namespace primus {

struct Rate {
  double BenchmarkResult::*amount;  // of one call
  const char* json;                 // "bus_bytes"
  const char* title;                // "bus GB/s"
  double scale;                     // from amount per second to the title's unit
  int digits;                       // behind the point

  double value(const BenchmarkResult& result) const { return result.*amount / result.timing.median * scale; }
  std::string text(const BenchmarkResult& result) const;  // empty where it does not apply
};

// Those that any result has.
std::vector<Rate> rates_of(const BenchmarkReport& report);

// The places of the table's cells: case, times, rates that apply, shares where ceilings were measured.
struct ReportTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};
ReportTable table_of(const BenchmarkReport& report);

}  // namespace primus
