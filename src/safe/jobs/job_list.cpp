#include "safe/jobs/job_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "lm/events/event_log.h"
#include "lm/events/run_folder.h"
#include "lm/report/metrics_line.h"
#include "lm/report/run_list.h"
#include "safe/jobs/stop.h"

namespace primus::jobs {
namespace {

using Scheduler = RunJob::Scheduler;

struct OpenRun {
  Path folder;
  RunStatus status;
  std::optional<RunStart> start;
};

std::string_view name_of(ScheduledJob::State state) {
  switch (state) {
    case ScheduledJob::State::kRunning:
      return name_of(RunState::kRunning);
    case ScheduledJob::State::kWaiting:
      return name_of(RunState::kWaiting);
    default:
      return "ending";
  }
}

// Returns the seconds until the last step, from the mean time of the recent steps.
std::optional<double> eta_of(const OpenRun& run) {
  if (!run.status.steps || run.status.step >= *run.status.steps) return std::nullopt;
  try {
    std::string text;
    EventLine step;
    if (!read_last_step(event_file(run.folder, 0), text, step)) return std::nullopt;
    double now = 0, mean = 0;
    const bool good = read_metrics_line(step.facts, [&](std::string_view key, double value) {
      if (key == "elapsed_time_per_iteration_ms") now = value;
      if (key == "elapsed_time_per_iteration_ms_avg") mean = value;
    });
    const double milliseconds = mean > 0 ? mean : now;
    constexpr double kToSeconds = 1e-3;
    if (!good || !(milliseconds > 0)) return std::nullopt;
    return static_cast<double>(*run.status.steps - run.status.step) * milliseconds * kToSeconds;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Returns what a run without processes waits for: "lost rank; starts again in 8 s".
std::string why_not_running(const RunStatus& run) {
  if (run.next.empty()) return {};
  return run.reason.empty() ? run.next : fmt::format("{}; {}", run.reason, run.next);
}

// A scheduler's job runs while its run waits or is restarted.
void add_run(const OpenRun& run, ListedJob& job) {
  if (job.state == name_of(RunState::kRunning) && !run.status.next.empty()) {
    job.state = name_of(run.status.state);
    job.reason = why_not_running(run.status);
  }
  job.run = run.folder;
  job.step = run.status.step;
  job.steps = run.status.steps;
  if (job.state == name_of(RunState::kRunning)) job.eta_seconds = eta_of(run);
}

// Returns whether the newest start of the run belongs to this job. Kubernetes' namespace may be unknown.
bool belongs(const OpenRun& run, const ScheduledJob& job) {
  if (!run.start || !run.start->job || run.start->job->scheduler != job.scheduler) return false;
  const RunJob& recorded = *run.start->job;
  if (recorded.id != job.id) return false;
  if (job.scheduler == Scheduler::kSlurm) return true;
  return recorded.name_space.empty() || recorded.name_space == job.name_space;
}

// Adds the runs that no scheduler started or lists.
void add_local(const OpenRun& run, std::vector<ListedJob>& jobs) {
  const bool held = run.status.state == RunState::kRunning;
  const std::optional<RunJob> recorded = run.start ? run.start->job : std::nullopt;
  const auto process = local_process(run.folder, recorded);
  if (!held && !process && !is_open(run.status.state)) return;
  // A process that outlives its run ends soon.
  const bool ends = !is_open(run.status.state);
  ListedJob job{
      .state = std::string(ends ? name_of(ScheduledJob::State::kEnding) : name_of(run.status.state)),
      .reason = why_not_running(run.status)};
  if (process) {
    job.name = fmt::format("process {}", process->pid);
    job.place = process->host;
  } else if (recorded && !run.start->ended && recorded->scheduler == Scheduler::kNone) {
    job.name = fmt::format("process {}", recorded->process.pid);
    job.place = recorded->process.host;
  } else {
    job.name = "process";
    if (job.reason.empty()) job.reason = "in another container, on another machine, or just starting";
  }
  add_run(run, job);
  jobs.push_back(std::move(job));
}

ListedJob listed(const ScheduledJob& job) {
  return {.name = job.shown,
          .state = std::string(name_of(job.state)),
          .place = job.nodes,
          .title = job.name,
          .reason = job.reason,
          .starts = job.starts,
          .seconds_left = job.seconds_left};
}

}  // namespace

JobList list_jobs(const JobListRequest& request, const Tools& tools) {
  JobList list;
  std::vector<OpenRun> runs;
  if (!request.folder.empty()) {
    RunSearch found = find_runs(request.folder);
    list.notes = std::move(found.notes);
    for (const Path& folder : found.folders) {
      OpenRun run{.folder = folder, .status = run_status(folder), .start = {}};
      try {
        run.start = read_run_start(folder);
      } catch (const Error& error) {
        list.notes.emplace_back(error.what());
      }
      runs.push_back(std::move(run));
    }
  }
  std::vector<ScheduledJob> scheduled;
  const auto ask = [&](const char* tool, const std::function<std::vector<ScheduledJob>()>& jobs) {
    if (!tools.has(tool)) return;
    try {
      for (ScheduledJob& job : jobs()) scheduled.push_back(std::move(job));
    } catch (const Error& error) {
      list.notes.emplace_back(error.what());
    }
  };
  ask("squeue", [&] { return slurm_jobs(tools); });
  if (request.asks_kubernetes) ask("kubectl", [&] { return kubernetes_jobs(tools, request.name_space); });
  std::vector<bool> taken(runs.size(), false);
  for (const ScheduledJob& job : scheduled) {
    const std::size_t before = list.jobs.size();
    // A job may train several runs at once, each in a separate job step.
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (taken[i] || !belongs(runs[i], job)) continue;
      if (job.state == ScheduledJob::State::kRunning && runs[i].start->ended) continue;
      taken[i] = true;
      list.jobs.push_back(listed(job));
      add_run(runs[i], list.jobs.back());
    }
    if (list.jobs.size() == before) list.jobs.push_back(listed(job));
  }
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (!taken[i]) add_local(runs[i], list.jobs);
  std::ranges::stable_sort(list.jobs, {},
                           [](const ListedJob& job) { return job.state == name_of(RunState::kWaiting); });
  return list;
}

}  // namespace primus::jobs
