// What preflight finds out about a machine, as plain data: facts (what is there), measurements (how fast it
// is) and findings (what a check made of them). One NodeReport is all that one process knows of its machine;
// rank 0 gathers those of all, from the rendezvous or from files. Free functions without state.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace primus::preflight {

enum class Verdict : std::uint8_t { kPass, kSkip, kWarn, kFail };
std::string_view name_of(Verdict verdict);  // "pass"

// What one check says about one thing.
struct Finding {
  std::string check;     // its name: "gpu.ecc"
  std::string category;  // "host", "gpu", "network", "storage", "performance", "experiment", "cluster"
  Verdict verdict = Verdict::kFail;
  std::string where = {};     // "gpu 3", "eth0", "node-7"; empty: the machine
  std::string measured = {};  // "/dev/shm holds 64.0 MiB"
  std::string wanted = {};    // "at least 8.00 GiB"
  std::string source = {};    // where that comes from: "--shm-min-gb", "presets/hardware/nvidia_h100.yaml"
  std::string fix = {};       // one sentence; of warnings and failures
};

// A property of the machine, or of one of its devices. Those that `drift` are compared across nodes.
struct Fact {
  std::string category, name, value;
  // How bad it is when nodes differ in it: kPass: not compared.
  Verdict drift = Verdict::kPass;
  // "cuda:3": the value is this device's, and all devices of all nodes are compared. Empty: the machine's.
  std::string where = {};
};

// A speed, compared with a threshold by a check and with other nodes by their median.
struct Measurement {
  std::string name;       // "gemm bf16": the same on all nodes
  std::string where;      // "cuda:0"
  std::string unit;       // "TFLOP/s"
  double value = 0;       // larger is better
  double wanted = 0;      // the least that passes; 0: nothing is asked
  double size = 0;        // position on the axis of a plot (bytes, or the side of a matrix); 0: no plot
  bool compared = false;  // with the same on other nodes
};

struct NodeReport {
  int rank = 0;
  int node = 0;  // number of the machine in its job: hosts may share a name
  std::string host;
  double wall_clock = 0;  // seconds since 1970, when the report was begun
  double seconds = 0;     // that it took
  std::vector<Fact> facts;
  std::vector<Measurement> measurements;
  std::vector<Finding> findings;
  // A check ran out of time and its thread still waits for the system: the program should end without
  // waiting for it. Not part of the JSON.
  bool has_stuck_threads = false;
};

// The worst of them. Skipped checks count as passed; with none at all, kFail: nothing was checked.
Verdict verdict_of(const std::vector<Finding>& findings);

nlohmann::ordered_json to_json(const NodeReport& report);
// The reverse, of what another process wrote. Throws Error(kInvalid) naming `source` for anything else.
NodeReport node_report(std::string_view json, const std::string& source);

}  // namespace primus::preflight
