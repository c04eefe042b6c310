// A process that trains as the only rank, or as one of several ranks of a job. With a launcher that restarts
// single ranks (launch/ranks/rank_channel.h), the process continues after the loss of another rank: it
// destroys model, communicators and recorded graphs, and trains again as a new process would, from the newest
// snapshot or checkpoint.
#pragma once

#include <exception>
#include <functional>
#include <optional>

#include "cli/command.h"
#include "comm/rendezvous/environment.h"
#include "config/experiment.h"
#include "launch/ranks/rank_channel.h"
#include "lm/train/trainer.h"

namespace primus::cli {

// Not thread-safe.
class RankRun {
 public:
  struct Options {
    bool json = false, plain = false, quiet = false, force = false;  // of 'train pretrain'
    // Shows the result. Called on rank 0 only.
    std::function<void(const TrainingSummary&)> report = {};
  };
  // `place`: this process's place in a job; absent: it trains on its own. Call it before other threads exist.
  // All arguments must outlive this object.
  RankRun(const config::Experiment& experiment, const std::optional<comm::JobEnvironment>& place,
          const Options& options, Console& console);

  // Trains to the end of the run. Returns the exit code. Throws Error.
  int run();

 private:
  // Takes part in one start of the job. Returns the error of a start that ended because another rank was lost
  // and that this process may leave; null: the run has ended. Throws this rank's own errors.
  std::exception_ptr take_part();
  void train(comm::Job* job, std::exception_ptr& lost);
  // Waits for the next start. Returns whether there is one.
  bool join();

  const config::Experiment& given_;
  config::Experiment experiment_;  // of the current start
  std::optional<comm::JobEnvironment> place_;
  const Options& options_;
  Console& console_;
  launch::RejoiningRank launcher_;
};

}  // namespace primus::cli
