// Repeats the checks of preflight on a node during a job, and drains a node that stays unhealthy. Checks that
// require an idle machine (kIdleChecks) are left out.
//
// One owner; not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "safe/preflight/node.h"

namespace primus::watch {

// How an unhealthy node is kept from getting further jobs.
enum class Drain : std::uint8_t { kNone, kSlurm, kKubernetes };

inline constexpr std::string_view kIdleChecks[] = {"gpu.processes", "gpu.free-memory", "gpu.activity",
                                                   "host.load"};

struct NodeWatchOptions {
  preflight::NodeOptions node = {};
  Drain drain = Drain::kNone;
  int drain_after = 2;    // looks in a row with a failed check after which the node is drained
  bool dry_run = false;   // true: the command that would drain is only reported
  std::string name = {};  // the node's name for the scheduler; empty: its name in Slurm, or its host name
};

// Returns the command that drains `node`. `reason`: one line.
std::vector<std::string> drain_command(Drain drain, const std::string& node, const std::string& reason);

class NodeWatch {
 public:
  NodeWatch(std::shared_ptr<const preflight::Machine> machine, NodeWatchOptions options);

  // Runs the checks, and drains the node if this is due. Returns the result as one line of JSON: time, host,
  // verdict, seconds, `findings` (all that did not pass), `changed` (checks whose verdict differs from that
  // of the last look), and `drain` if the node was drained now: the command, and why it failed.
  std::string look();
  // Returns the verdict of the last look.
  preflight::Verdict verdict() const { return verdict_; }
  int looks() const { return looks_; }
  // Returns the last look in the text format of Prometheus.
  std::string metrics() const;

 private:
  // Drains the node if it is due. Returns the JSON of the field `drain`, or nothing.
  std::optional<std::string> drain(const std::string& reason);

  std::shared_ptr<const preflight::Machine> machine_;
  NodeWatchOptions options_;
  preflight::NodeReport last_;
  preflight::Verdict verdict_ = preflight::Verdict::kPass;
  std::map<std::string, preflight::Verdict> verdicts_;  // by check and place
  int looks_ = 0, failures_ = 0;                        // failures_: looks in a row with a failed check
  bool drained_ = false;
};

}  // namespace primus::watch
