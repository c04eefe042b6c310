#include "cli/train/rank_run.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "base/files/file.h"
#include "cli/train/stop_signal.h"
#include "cli/train/supervise_options.h"
#include "cli/train/unused_changes.h"
#include "cli/train/watchers.h"
#include "comm/job.h"
#include "comm/rank_state.h"
#include "lm/events/live_view.h"
#include "lm/events/run_folder.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/settings/training_settings.h"

namespace primus::cli {
namespace {

// A process that replaces a lost rank, and whose start was cancelled. The launcher reports the reason.
constexpr int kCalledOff = 3;

// Returns whether the job has ended because of another rank. A broken connection may be noticed by this
// thread first, and a moment later by the thread that reads it.
bool other_rank_was_lost(comm::Job& job, const Error& error) {
  using namespace std::chrono_literals;
  constexpr auto kMoment = 100ms, kLook = 2ms;
  const comm::AbortState& abort = *job.state().abort;
  for (auto waited = 0ms; error.kind() == ErrorKind::kIo && waited < kMoment && !abort.aborted();
       waited += kLook)
    std::this_thread::sleep_for(kLook);
  return abort.aborted();
}

}  // namespace

RankRun::RankRun(const config::Experiment& experiment, const std::optional<comm::JobEnvironment>& place,
                 const Options& options, Console& console)
    : given_(experiment), experiment_(experiment), place_(place), options_(options), console_(console) {}

int RankRun::run() {
  if (launcher_.replaces() && !(place_ && join())) return kCalledOff;
  for (;;) {
    const std::exception_ptr lost = take_part();
    if (!lost) return 0;
    if (!join()) std::rethrow_exception(lost);
  }
}

bool RankRun::join() {
  const std::optional<launch::JoinOrder> order = launcher_.join(*place_);
  if (!order) return false;
  experiment_ = given_;
  continue_run(experiment_, order->seconds);
  return true;
}

std::exception_ptr RankRun::take_part() {
  std::unique_ptr<comm::Job> job;
  std::exception_ptr lost;
  if (place_ && place_->world > 1) {
    // training_loop.cpp shortens the timeout when the time of a step is known.
    job = comm::Job::connect(*place_, {.timeout = first_patience_of(experiment_),
                                       .flight_folder = run_folder_of(experiment_).logs(),
                                       .notice = [&](const std::string& text) { console_.note(text); }});
  }
  train(job.get(), lost);
  return lost;
}

void RankRun::train(comm::Job* job, std::exception_ptr& lost) {
  const RunFolder folder = run_folder_of(experiment_);
  const int rank = job ? job->rank() : 0;
  const bool view = rank == 0 && console_.err.ansi && !options_.json && !options_.plain && !console_.debug;
  const LogLevel screen = options_.quiet || options_.json || view ? LogLevel::kWarning
                          : console_.debug                        ? LogLevel::kDebug
                                                                  : LogLevel::kInfo;
  std::optional<LiveBlock> block;
  if (view && !options_.quiet) block.emplace(console_.err);
  Logger log(LogOptions{.folder = folder.rank_logs(experiment_.module_name, rank),
                        .rank = rank,
                        .world_size = job ? job->size() : 1,
                        .console_level = screen,
                        .console = console_.err,
                        .above = block ? &*block : nullptr});
  std::unique_ptr<RunListener> live;
  if (block) {
    live = std::make_unique<LiveView>(console_.err, *block, experiment_.exp_name);
  } else if (view) {
    live = std::make_unique<ProgressView>(console_.err);
  }
  const FamilyRegistry families = builtin_families();
  Watchers watchers(experiment_, log, rank);
  TrainingSummary summary;
  try {
    Trainer trainer(experiment_, families, log,
                    {.job = job,
                     .view = live.get(),
                     .ignore_memory = options_.force,
                     .version = PRIMUS_VERSION,
                     .alerts = &watchers.alerts,
                     .health = &watchers.health,
                     .asked_by = stop_signal_name});
    trainer.prepare();
    // From now on, signals let the run save its progress. Launchers and schedulers signal every process.
    // Each process that has started other processes also forwards the signal to them.
    const bool is_watched = place_ || std::getenv("SLURM_JOB_ID");
    summary = trainer.run(catch_stop_signals(is_watched ? SecondSignal::kIgnored : SecondSignal::kEnds));
    live.reset();
    if (rank == 0) options_.report(summary);
    if (job) job->leave();
  } catch (const Error& error) {
    // Logs the error to the run's files, unless the run was refused before its folder was made.
    if (Env::posix().status(folder.root())) log.write_to_files(LogLevel::kError, error.what());
    if (job && launcher_.possible() && other_rank_was_lost(*job, error)) {
      lost = std::current_exception();
      return;
    }
    if (job) {
      // The other ranks show this text as the reason for their end. The text contains this rank's number,
      // the location and the hint.
      const std::string &hint = error.hint(), &location = error.location();
      job->abort(fmt::format("rank {}: {}{}{}", job->rank(), location.empty() ? "" : location + ": ",
                             error.what(), hint.empty() ? "" : " (" + hint + ")"),
                 error.kind());
    }
    throw;
  }
  refuse_unused_changes(summary);
}

}  // namespace primus::cli
