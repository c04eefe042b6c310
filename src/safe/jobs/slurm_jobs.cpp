#include "safe/jobs/slurm_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace primus::jobs {
namespace {

// Names of jobs may contain any printable character, so a control character separates the fields, and the
// name is the last field.
constexpr char kSeparator = '\x1f';
constexpr std::size_t kFields = 8;

std::string format() {
  const std::string s(1, kSeparator);
  // The job's number, its number with the element of an array, state, nodes, reason, expected start, time
  // left, name.
  return "--format=%A" + s + "%i" + s + "%T" + s + "%N" + s + "%r" + s + "%S" + s + "%L" + s + "%j";
}

// Variables that would hide jobs.
void unset_filters() {
  for (const char* name :
       {"SQUEUE_STATES", "SQUEUE_PARTITION", "SQUEUE_ACCOUNT", "SQUEUE_QOS", "SQUEUE_NAMES",
        "SQUEUE_LICENSES", "SQUEUE_USERS", "SQUEUE_FORMAT", "SQUEUE_FORMAT2", "SQUEUE_ARRAY",
        "SQUEUE_CLUSTERS", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"})
    ::unsetenv(name);
}

std::optional<ScheduledJob> job_of(std::string_view line) {
  std::vector<std::string> fields;
  while (fields.size() + 1 < kFields) {
    const std::size_t at = line.find(kSeparator);
    if (at == std::string_view::npos) return std::nullopt;
    fields.emplace_back(line.substr(0, at));
    line.remove_prefix(at + 1);
  }
  fields.emplace_back(line);
  const std::string& state = fields[2];
  using State = ScheduledJob::State;
  ScheduledJob job{.scheduler = RunJob::Scheduler::kSlurm,
                   .id = fields[0],
                   .shown = "slurm:" + fields[1],
                   .name = fields[7],
                   .nodes = fields[3]};
  // https://slurm.schedmd.com/squeue.html: states of a job
  if (state == "RUNNING" || state == "SUSPENDED" || state == "STOPPED" || state == "RESIZING" ||
      state == "SIGNALING") {
    job.state = State::kRunning;
    job.seconds_left = seconds_of_slurm(fields[6]);
    if (state != "RUNNING") job.reason = state;
  } else if (state == "PENDING" || state == "CONFIGURING" || state.starts_with("REQUEUE") ||
             state == "SPECIAL_EXIT" || state == "RESV_DEL_HOLD") {
    job.state = State::kWaiting;
    job.reason = fields[4] == "None" ? "" : fields[4];
    if (fields[5] != "N/A") job.starts = fields[5];
    // The elements of an array that wait are one line, "123_[4-7]"; its number ends all of them.
    if (fields[1].find('[') != std::string::npos) job.shown = "slurm:" + fields[0];
  } else if (state == "COMPLETING" || state == "STAGE_OUT") {
    job.state = State::kEnding;
  } else {
    return std::nullopt;  // it has ended
  }
  return job;
}

std::vector<ScheduledJob> jobs_in(std::string_view text) {
  std::vector<ScheduledJob> jobs;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (auto job = job_of(line)) jobs.push_back(std::move(*job));
  }
  return jobs;
}

// Refuses a job of another cluster. Numbers of jobs are unique only within a cluster.
void check_cluster(const Tools& tools, const std::string& cluster) {
  if (cluster.empty()) return;
  const std::string config = tools.output({"scontrol", "show", "config"});
  constexpr std::string_view kKey = "ClusterName";
  const std::size_t at = config.find(kKey);
  if (at == std::string::npos) return;
  const std::string line = config.substr(at, config.find('\n', at) - at);
  std::string here = line.substr(std::min(line.size(), line.find('=') + 1));
  here.erase(0, here.find_first_not_of(' '));
  here.erase(here.find_last_not_of(" \r") + 1);
  if (here != cluster)
    throw invalid(
        fmt::format("the run is a job of the Slurm cluster '{}', but the tools of this machine belong "
                    "to the cluster '{}'",
                    cluster, here),
        fmt::format("run this command on a login node of '{}'", cluster));
}

}  // namespace

std::optional<double> seconds_of_slurm(const std::string& text) {
  std::string_view rest = text;
  double days = 0, seconds = 0;
  const auto take = [&](std::string_view part, double& value) {
    int number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    value = number;
    return error == std::errc() && end == part.data() + part.size() && number >= 0;
  };
  if (const std::size_t dash = rest.find('-'); dash != std::string_view::npos) {
    if (!take(rest.substr(0, dash), days)) return std::nullopt;
    rest.remove_prefix(dash + 1);
  }
  constexpr double kSixty = 60, kDay = 86400;
  for (bool more = true; more;) {
    const std::size_t colon = rest.find(':');
    more = colon != std::string_view::npos;
    double value = 0;
    if (!take(rest.substr(0, colon), value)) return std::nullopt;
    seconds = seconds * kSixty + value;
    if (more) rest.remove_prefix(colon + 1);
  }
  return days * kDay + seconds;
}

std::vector<ScheduledJob> slurm_jobs(const Tools& tools) {
  unset_filters();
  return jobs_in(tools.output({"squeue", "--me", "--noheader", format()}));
}

std::optional<ScheduledJob> find_slurm_job(const Tools& tools, const RunJob& job) {
  unset_filters();
  if (!tools.has("squeue")) tools.run({"squeue"});  // throws
  check_cluster(tools, job.cluster);
  const std::vector<std::string> command{"squeue", "--noheader", "--jobs=" + job.id, format()};
  const SubprocessResult result = tools.run(command);
  if (result.exit_code != 0 && result.err.find("Invalid job id") != std::string::npos) return std::nullopt;
  const std::vector<ScheduledJob> found = jobs_in(result.exit_code == 0 ? result.out : tools.output(command));
  if (found.empty()) return std::nullopt;
  // Ending the waiting elements of an array by its number would end the running elements, too, before they
  // save.
  const auto differs = [&](const ScheduledJob& one) { return one.state != found.front().state; };
  if (std::ranges::any_of(found, differs))
    throw invalid(
        fmt::format("elements of Slurm's job array {} wait, and others run", job.id),
        fmt::format("name one element, such as slurm:{}_1; 'squeue --jobs={}' lists them", job.id, job.id));
  return found.front();
}

std::string stop_slurm_job(const Tools& tools, const RunJob& job, const ScheduledJob& found, bool now) {
  if (found.state == ScheduledJob::State::kEnding)
    return fmt::format("Slurm's job {} is already ending", job.id);
  if (found.state == ScheduledJob::State::kWaiting) {
    tools.output({"scancel", job.id});
    return fmt::format("Slurm's job {} was waiting for nodes, and is cancelled", job.id);
  }
  const std::string target = job.step.empty() ? job.id : job.id + "." + job.step;
  if (now) {
    // A batch script could queue the job again if only its step was cancelled. An interactive allocation
    // (salloc) belongs to its user, and stays.
    const bool is_batch =
        tools.output({"scontrol", "show", "job", job.id, "--oneliner"}).find("BatchFlag=1") !=
        std::string::npos;
    const std::string& ended = is_batch ? job.id : target;
    tools.output({"scancel", ended});
    return fmt::format("Slurm's job {} is cancelled; its ranks have Slurm's KillWait (usually 30 s) to save",
                       ended);
  }
  // Only steps get this signal and not the batch script, so the script does not queue the job again. Ranks
  // have no time limit, unlike after 'scancel JOB'.
  tools.output({"scancel", "--signal=USR1", target});
  return fmt::format("the ranks of Slurm's job {} were asked to save and end (SIGUSR1)", target);
}

}  // namespace primus::jobs
