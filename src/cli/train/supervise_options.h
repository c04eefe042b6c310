// The options --supervise, --max-restarts, --spares and --node-wait of training commands: this process starts
// the command again as its child, watches it, and restarts it after faults (safe/supervise).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/options/rank_options.h"
#include "comm/rendezvous/environment.h"
#include "config/experiment.h"
#include "safe/supervise/supervisor.h"

namespace primus::cli {

class SuperviseOptions {
 public:
  void declare(Arguments& arguments);
  bool given() const { return supervise_; }
  // Machines of the job that wait to take the place of a lost one (--spares).
  std::int64_t spares() const { return spares_; }
  int without_spares(int nodes) const { return nodes > 0 ? nodes - static_cast<int>(spares_) : nodes; }
  // Throws Error(kInvalid) if a process that is already a rank of a job cannot be supervised, for more spares
  // than `nodes` machines (0: unknown) allow, and for the other options without --supervise.
  void check(std::int64_t nodes, const std::optional<comm::JobEnvironment>& place = {}) const;

  // Supervises this command with `ranks` ranks on this machine; returns its exit code.
  int run(const config::Experiment& experiment, int ranks, const RankOptions& place, Console& console) const;
  // Describe what run() would do, for --dry-run: as text, and as a JSON object.
  std::string plan(const config::Experiment& experiment, int ranks, std::int64_t nodes) const;
  nlohmann::json plan_json(const config::Experiment& experiment, int ranks, std::int64_t nodes) const;

 private:
  supervise::SupervisedJob job(const config::Experiment& experiment, int ranks, std::int64_t nodes) const;

  bool supervise_ = false, restart_all_ = false;
  std::int64_t spares_ = 0;
  std::optional<std::int64_t> max_restarts_;
  std::optional<double> node_wait_;  // minutes
};

// Changes the experiment of a run that is started again, so many seconds after its supervisor started: it
// continues from its newest state, and exit_duration_in_mins counts from the first start.
void continue_run(config::Experiment& experiment, double seconds);

// Whether the ranks of this launcher can be restarted one by one (launch/ranks/rank_channel.h). Ranks on GPUs
// are restarted together: leaving a start within a process was not tested there.
bool restarts_single_ranks(const config::Experiment& experiment);

// Returns a command's words without --supervise and the options that belong to it.
std::vector<std::string> without_supervise(const std::vector<std::string>& words);

}  // namespace primus::cli
