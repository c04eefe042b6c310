// Simulates a supervised run on many nodes in virtual time. Faults occur at random, the supervisor's own
// classes decide (RecoveryPolicy) and account for the time (TimeAccount), and nothing is started.
//
// Assumptions:
//   - Faults are independent, and the time between two faults of a node is exponentially distributed. The
//     job has a fault as soon as one of its nodes has one.
//   - Each fault ends the whole job, which continues from the newest durable checkpoint.
//   - Some faults remove their node until it is repaired. A spare takes its place at once; without a spare,
//     the job waits for the next repaired node, but at most RecoveryLimits::node_wait: then it ends, as the
//     supervisor does. Spares have no faults.
//   - A save pauses training, and is durable some time later. A save that is due earlier waits.
//   - The same holds for snapshots in memory, which are usable some time later, when all ranks and the
//     partners of their nodes have them. No fault hits a node and its partner.
//
// Free functions and plain data; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lm/events/supervision.h"
#include "safe/supervise/recovery/recovery_policy.h"

namespace primus::simulation {

// A kind of fault.
struct FaultKind {
  std::string_view name;
  supervise::EndKind end;
  double share;             // part of all faults; the shares of all kinds add up to 1
  double detection;         // seconds from the fault until the supervisor has detected it
  bool steps_wait = false;  // whether detection takes at least three steps (hangs)
  bool removes_node = false;
};

// The unplanned interruptions of the training of Llama 3 on 16,384 GPUs in 54 days (arXiv:2407.21783, table
// 5): 419, of which 6 by silent corruption are left out, because the supervisor does not detect them.
const std::vector<FaultKind>& published_faults();
// Hours between two of these faults of one node with eight GPUs.
double published_node_hours();

struct Scenario {
  std::int64_t nodes = 1, spares = 0;
  double node_hours = 0;     // mean time between two faults of a node, in hours; > 0
  double repair_hours = 24;  // mean time (exponentially distributed) until a removed node is a spare
  double step_seconds = 10;
  std::int64_t save_interval = 100;    // steps
  double save_pause = 1;               // seconds for which a save pauses training
  double save_seconds = 60;            // seconds from the end of the pause until the checkpoint is durable
  std::int64_t snapshot_interval = 0;  // steps between snapshots in memory; 0: none
  double snapshot_pause = 0.1;         // seconds for which a snapshot pauses training
  double snapshot_seconds = 10;        // seconds from the end of the pause until a restart can use it
  double start_seconds = 120;          // from the start of the processes until the first step
  double days = 30;                    // length of the run
  supervise::RecoveryLimits limits = {};
};

struct Outcome {
  RunTimes times = {};      // `wall` is the length of the run, or the time until the policy gave up
  double waiting = 0;       // seconds of times.restart without enough nodes
  std::int64_t faults = 0;  // includes faults during a start
  std::int64_t restarts = 0;
  std::string gave_up = {};  // the policy's reason, if it gave up
  // Useful time divided by the planned length of the run, also if the policy gave up before its end.
  double goodput = 0;
};

// Simulates one run. The outcome depends only on the scenario and the seed. Throws Error(kInvalid) if a value
// of the scenario is out of its range.
Outcome simulate(const Scenario& scenario, std::uint64_t seed);

}  // namespace primus::simulation
