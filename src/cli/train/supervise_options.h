// The options --supervise and --max-restarts of training commands: this process starts the command again as
// its child, watches it, and restarts it after faults (safe/supervise).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "comm/rendezvous/environment.h"
#include "config/experiment.h"
#include "safe/supervise/supervisor.h"

namespace primus::cli {

class SuperviseOptions {
 public:
  void declare(Arguments& arguments);
  bool given() const { return supervise_; }
  // Throws Error(kInvalid) if a job on so many machines (0: unknown), or a process that is already a rank of
  // a job, cannot be supervised; and for --max-restarts without --supervise.
  void check(std::int64_t nodes, const std::optional<comm::JobEnvironment>& place = {}) const;

  // Supervises this command with `ranks` ranks on this machine; returns its exit code.
  int run(const config::Experiment& experiment, int ranks, Console& console) const;
  // Describe what run() would do, for --dry-run: as text, and as a JSON object.
  std::string plan(const config::Experiment& experiment, int ranks) const;
  nlohmann::json plan_json(const config::Experiment& experiment, int ranks) const;

 private:
  supervise::SupervisedJob job(const config::Experiment& experiment, int ranks) const;

  bool supervise_ = false;
  std::optional<std::int64_t> max_restarts_;
};

// Returns a command's words without --supervise, and without --max-restarts and its value.
std::vector<std::string> without_supervise(const std::vector<std::string>& words);

}  // namespace primus::cli
