#include "safe/jobs/scheduler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "safe/jobs/kubernetes_jobs.h"
#include "safe/jobs/slurm_jobs.h"

namespace primus::jobs {

bool Tools::has(const std::string& program) const { return !find_program(program, path_).empty(); }

SubprocessResult Tools::run(const std::vector<std::string>& command) const {
  constexpr std::chrono::seconds kLimit{30};
  constexpr std::size_t kMaxOutput = std::size_t{256} << 20;  // a queue of many thousands of jobs
  SubprocessResult result =
      run_subprocess(command, {.timeout = kLimit, .output_limit = kMaxOutput, .path = path_});
  if (!result.found)
    throw Error(ErrorKind::kDependency, fmt::format("the program '{}' is not installed here", command[0]),
                "run this command on a machine that has it, such as a login node");
  if (result.timed_out)
    throw Error(ErrorKind::kIo, fmt::format("'{}' did not answer for {} s", command[0], kLimit.count()),
                "try it yourself, and ask the administrator of the cluster");
  return result;
}

std::string Tools::output(const std::vector<std::string>& command) const {
  SubprocessResult result = run(command);
  if (result.exit_code != 0) {
    std::string said = result.err.empty() ? result.out : result.err;
    said.erase(said.find_last_not_of(" \n") + 1);
    // The tools repeat a failed connection in several lines, and say in the last one what it means.
    if (const std::size_t line = said.rfind('\n'); line != said.npos) said.erase(0, line + 1);
    said = printable(said);
    constexpr std::size_t kMost = 160;
    if (said.size() > kMost) said = said.substr(0, kMost) + "...";
    throw Error(ErrorKind::kIo,
                fmt::format("'{}' failed (exit code {}): {}", command[0], result.exit_code, said),
                fmt::format("run '{}' to see all that it says", fmt::join(command, " ")));
  }
  return std::move(result.out);
}

std::optional<ScheduledJob> find_job(const Tools& tools, const RunJob& job) {
  return job.scheduler == RunJob::Scheduler::kSlurm ? find_slurm_job(tools, job)
                                                    : find_kubernetes_job(tools, job);
}

std::string stop_job(const Tools& tools, const RunJob& job, const ScheduledJob& found, bool now) {
  return job.scheduler == RunJob::Scheduler::kSlurm ? stop_slurm_job(tools, job, found, now)
                                                    : stop_kubernetes_job(tools, found, now);
}

std::optional<RunJob> named_job(const std::string& word) {
  constexpr std::string_view kSlurm = "slurm:", kKubernetes = "k8s:";
  RunJob job;
  const auto fits = [](const std::string& text, std::string_view more) {
    return !text.empty() && std::ranges::all_of(text, [&](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || more.find(c) != std::string_view::npos;
    }) && text.front() != '-';
  };
  if (word.starts_with(kSlurm)) {
    job.scheduler = RunJob::Scheduler::kSlurm;
    job.id = word.substr(kSlurm.size());
    if (job.id.find_first_not_of("0123456789_+") != std::string::npos || !fits(job.id, "_+"))
      return std::nullopt;
    return job;
  }
  if (!word.starts_with(kKubernetes)) return std::nullopt;
  job.scheduler = RunJob::Scheduler::kKubernetes;
  job.id = word.substr(kKubernetes.size());
  if (const std::size_t slash = job.id.find('/'); slash != std::string::npos) {
    job.name_space = job.id.substr(0, slash);
    job.id.erase(0, slash + 1);
    if (!fits(job.name_space, "-.")) return std::nullopt;
  }
  if (!fits(job.id, "-.")) return std::nullopt;
  return job;
}

}  // namespace primus::jobs
