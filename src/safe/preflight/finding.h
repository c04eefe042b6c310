// Results of preflight as plain data: facts (properties of the machine), measurements (speeds) and findings
// (verdicts of checks). A NodeReport holds all results of one process on its machine. Rank 0 gathers all
// reports, through the rendezvous or from files. Free functions without state.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace primus::preflight {

enum class Verdict : std::uint8_t { kPass, kSkip, kWarn, kFail };
std::string_view name_of(Verdict verdict);  // "pass"

// The verdict of one check on one item.
struct Finding {
  std::string check;     // the check's name: "gpu.ecc"
  std::string category;  // "host", "gpu", "network", "storage", "performance", "experiment", "cluster"
  Verdict verdict = Verdict::kFail;
  std::string where = {};     // "gpu 3", "eth0", "node-7"; empty: the machine
  std::string measured = {};  // "/dev/shm holds 64.0 MiB"
  std::string wanted = {};    // "at least 8.00 GiB"
  std::string source = {};    // source of `wanted`: "--shm-min-gb", "presets/hardware/nvidia_h100.yaml"
  std::string fix = {};       // one sentence that says how to fix a warning or a failure
};

// A property of the machine or of one of its devices.
struct Fact {
  std::string category, name, value;
  // The verdict of the comparison if nodes differ in this fact; kPass: the fact is not compared.
  Verdict drift = Verdict::kPass;
  // For example "cuda:3": the fact is a property of this device, and is compared between all devices of all
  // nodes. Empty: a property of the machine.
  std::string where = {};
};

// A speed. A check compares it with a threshold and with the median of the nodes.
struct Measurement {
  std::string name;       // "gemm bf16": equal on all nodes
  std::string where;      // "cuda:0"
  std::string unit;       // "TFLOP/s"
  double value = 0;       // larger is better
  double wanted = 0;      // minimum to pass; 0: no threshold
  double size = 0;        // position on the axis of a plot (bytes, or the side of a matrix); 0: no plot
  bool compared = false;  // whether this measurement is compared with the same measurement on other nodes
};

struct NodeReport {
  int rank = 0;
  int node = 0;  // the machine's number in its job, because host names may repeat
  std::string host;
  double wall_clock = 0;  // start of the report, in seconds since 1970
  double seconds = 0;     // duration of the collection
  std::vector<Fact> facts;
  std::vector<Measurement> measurements;
  std::vector<Finding> findings;
  // True if a check exceeded its time limit and its thread still waits for the system. The program must then
  // exit without joining that thread. The JSON does not contain this member.
  bool has_stuck_threads = false;
};

// Returns the worst verdict. Skipped checks count as passed. Without findings, returns kFail, because no
// check has run.
Verdict verdict_of(const std::vector<Finding>& findings);

nlohmann::ordered_json to_json(const NodeReport& report);
// Parses a report written by another process. Throws Error(kInvalid) naming `source` if the report is
// invalid.
NodeReport node_report(std::string_view json, const std::string& source);

}  // namespace primus::preflight
