#include "safe/jobs/stop.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "lm/events/run_event.h"
#include "lm/events/run_folder.h"
#include "lm/events/supervisor_record.h"
#include "lm/report/run_list.h"

namespace primus::jobs {
namespace {

// Returns the sentence "the run 'x' does not run: it is finished at step 10".
Error not_running(const Path& run, const std::string& name) {
  const RunStatus status = run_status(run);
  if (status.state == RunState::kDamaged)
    return invalid(fmt::format("the run '{}' cannot be read: {}", name, status.problem));
  return invalid(
      fmt::format("the run '{}' does not run: it is {} at step {}", name, name_of(status.state), status.step),
      "'primus jobs' lists what runs");
}

// Signals a process through a descriptor, so that no other process can get the signal if this one ends and
// its number is reused.
void send_signal(const ProcessIdentity& process, int number) {
  const int descriptor = static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0));
  int error = descriptor < 0 ? errno : 0;
  if (descriptor >= 0) {
    if (!is_running(process)) {
      error = ESRCH;
    } else if (::syscall(SYS_pidfd_send_signal, descriptor, number, nullptr, 0) != 0) {
      error = errno;
    }
    ::close(descriptor);
  }
  if (error == ESRCH) throw invalid(fmt::format("process {} has just ended", process.pid));
  if (error == EPERM)
    throw invalid(fmt::format("process {} belongs to another user", process.pid),
                  "ask its owner to stop the run");
  if (error != 0) throw io_error(fmt::format("cannot signal process {}", process.pid), error);
}

// Sends another signal to a process that an earlier signal may have ended.
void send_another(const ProcessIdentity& process, int number) {
  try {
    send_signal(process, number);
  } catch (const Error&) {
    if (is_running(process)) throw;
  }
}

// Returns whether the process has not yet read or handled the signal.
bool is_pending(const ProcessIdentity& process, int number) {
  std::ifstream status(fmt::format("/proc/{}/status", process.pid));
  for (std::string line; is_running(process) && std::getline(status, line);) {
    constexpr std::string_view kPending = "ShdPnd:";  // signals to the process, a bit each, in hexadecimal
    if (line.starts_with(kPending))
      return (std::strtoull(line.c_str() + kPending.size(), nullptr, 16) >> (number - 1) & 1) != 0;
  }
  return false;
}

}  // namespace

std::optional<ProcessIdentity> local_process(const Path& run, const std::optional<RunJob>& job) {
  if (const auto process = job ? seen_from_here(job->process) : std::nullopt) {
    // The process may outlive the run. It still matters if it holds the lock or will start the run again.
    const auto supervision = read_supervision(run);
    if (RunLock::held(run) || (supervision && supervision->ended.empty())) return process;
  }
  // A supervisor that starts the run again may have recorded no start yet.
  if (const auto supervision = read_supervision(run); supervision && supervision->pending) {
    const std::optional<RunJob>& by = supervision->pending->supervisor;
    if (const auto process = by ? seen_from_here(by->process) : std::nullopt) return process;
  }
  // The supervisor of several machines waits for them; the newest record is of an earlier start, or missing.
  if (const auto supervisor = supervisor_of(run)) return supervisor;
  // The run is starting and has recorded nothing yet, or an older version trains.
  return RunLock::held(run) ? lock_holder(run) : std::nullopt;
}

StopRequest::StopRequest(const std::string& target, const Tools& tools) : tools_(tools) {
  const std::string name = printable(target);
  // A run that reads its data has a lock, and no records yet.
  if (!is_run_folder(target) && !supervisor_of(target) && !RunLock::held(target)) {
    const auto job = named_job(target);
    if (!job) {
      const std::string hint = hint_for_run_name(target);
      throw invalid(
          fmt::format("'{}' is not the folder of a run", name),
          hint.empty() ? "'primus jobs' lists runs and jobs; a job is named slurm:123 or k8s:NAME" : hint);
    }
    job_ = *job;
    scheduled_ = find_job(tools_, job_);
    if (!scheduled_)
      throw invalid(fmt::format("there is no job '{}' that runs or waits", name),
                    "'primus jobs' lists the jobs");
    return;
  }
  run_ = target;
  const auto start = read_run_start(run_);
  if (start) started_ = start->time;
  if (start && start->job && start->job->scheduler != RunJob::Scheduler::kNone) {
    job_ = *start->job;
    // A run that this machine trains now, after the job that was recorded.
    if (const auto process = RunLock::held(run_) ? local_process(run_, std::nullopt) : std::nullopt;
        process && start->ended && *process != job_.process) {
      job_ = {.process = *process};
      return;
    }
    scheduled_ = find_job(tools_, job_);
    // The job may run something else now: the next command of its script, or a job that took over its name.
    const bool other = scheduled_ && scheduled_->state == ScheduledJob::State::kRunning && start->ended &&
                       !RunLock::held(run_);
    if ((!scheduled_ || other) && !find_waiting(name)) throw not_running(run_, name);
    return;
  }
  if (start) job_ = start->job.value_or(RunJob{});
  find_local(name);
}

// The supervisor of several machines may wait for them; the newest record is then of an earlier start.
// Returns false if there is none.
bool StopRequest::find_waiting(const std::string& name) {
  std::optional<RunJob> waiting;
  try {
    constexpr std::uint64_t kLimit = 65536;
    waiting = job_from_json(read_file(run_ / kSupervisorFile, kLimit));
  } catch (const Error&) {
    return false;  // there is no such file
  }
  if (!waiting) return false;
  if (const auto process = seen_from_here(waiting->process)) {
    job_ = {.process = *process};
    scheduled_.reset();
    return true;
  }
  const bool of_scheduler = waiting->scheduler != RunJob::Scheduler::kNone;
  if (of_scheduler && (waiting->id != job_.id || waiting->scheduler != job_.scheduler)) {
    auto found = find_job(tools_, *waiting);
    if (!found) return false;
    job_ = *waiting;
    scheduled_ = std::move(found);
    return true;
  }
  const auto here = process_identity(::getpid());
  if (of_scheduler || !here || waiting->process.host == here->host) return false;  // it has ended
  throw invalid(
      fmt::format(
          "the supervisor of the run '{}' was started on the host '{}' (process {}), and this is '{}'", name,
          printable(waiting->process.host), waiting->process.pid, here->host),
      fmt::format("ssh {} primus stop {}", printable(waiting->process.host),
                  printable(std::filesystem::absolute(run_).string())));
}

void StopRequest::find_local(const std::string& name) {
  if (const auto process = local_process(run_, job_)) {
    job_.process = *process;
    return;
  }
  const ProcessIdentity recorded = job_.process;
  const bool held = RunLock::held(run_);
  const auto here = process_identity(::getpid());
  // A container has its own host name, but the boot_id of its machine.
  const bool elsewhere =
      !recorded.host.empty() && here && recorded.host != here->host && recorded.boot != here->boot;
  const auto start = read_run_start(run_);
  std::string how;
  if (held) {
    how = "runs on";
  } else if (!start || !start->ended) {
    how = "has recorded no end, and was started on";
  } else if (const RunState state = run_status(run_).state; is_open(state)) {
    how = fmt::format("is {}, and was started on", name_of(state));
  }
  if (elsewhere && !how.empty()) {
    throw invalid(fmt::format("the run '{}' {} the host '{}' (process {}), and this is '{}'", name, how,
                              printable(recorded.host), recorded.pid, here->host),
                  fmt::format("ssh {} primus stop {}", printable(recorded.host),
                              printable(std::filesystem::absolute(run_).string())));
  }
  if (held) {
    throw invalid(
        fmt::format("a process trains in '{}', but it is in another container or on another machine", name),
        "run this command there, or stop the container: docker stop --time 600 NAME");
  }
  throw not_running(run_, name);
}

// A second signal would end ranks that are saving. The file names the start of the run that was asked.
bool StopRequest::was_sent() const {
  if (run_.empty()) return false;
  try {
    constexpr std::uint64_t kLimit = 65536;
    const auto asked = job_from_json(read_file(run_ / kRequestFile, kLimit));
    return asked && to_json(*asked) == to_json(job_);
  } catch (const Error&) {
    return false;  // there is no such file
  }
}

// If the leader of several supervisors is killed, the supervisors of the other machines continue the job. The
// leader therefore gets a request to end all ranks, and is killed only if it does not answer.
std::string StopRequest::end_machines() const {
  constexpr std::chrono::milliseconds kAnswer{10000}, kLook{20};
  auto waited = kLook;
  const auto wait_while = [&](const auto& condition) {
    for (; waited < kAnswer && condition(); waited += kLook) std::this_thread::sleep_for(kLook);
  };
  send_signal(job_.process, SIGTERM);
  send_another(job_.process, SIGCONT);
  // A process gets pending signals in the order of their numbers. A SIGTERM shortly after a SIGINT repeats
  // the same request, and the ranks would save.
  wait_while([&] { return is_pending(job_.process, SIGTERM); });
  send_another(job_.process, SIGINT);  // a second request ends the ranks without saving
  wait_while([&] { return is_running(job_.process); });
  if (!is_running(job_.process))
    return fmt::format("process {} of this machine and the ranks of all machines have ended",
                       job_.process.pid);
  send_another(job_.process, SIGKILL);
  return fmt::format(
      "process {} of this machine did not answer, and was killed; the other machines may "
      "continue the run, so stop it there, too",
      job_.process.pid);
}

std::string StopRequest::send(bool now) {
  if (!now && was_sent())
    return "the run was asked before, and has not ended yet; 'primus stop --now' ends it without saving";
  const std::string done = ask(now);
  if (run_.empty()) return done;
  try {
    nlohmann::ordered_json request = nlohmann::ordered_json::parse(to_json(job_));
    request["now"] = now;
    write_file_atomic(run_ / kRequestFile, request.dump());
  } catch (const Error&) {
    return done + "; do not repeat this command, because a second request ends the ranks at once";
  }
  return done;
}

std::string StopRequest::ask(bool now) const {
  if (scheduled_) return stop_job(tools_, job_, *scheduled_, now);
  std::error_code none;
  if (now && !run_.empty() && std::filesystem::exists(run_ / kSupervisorFile, none)) return end_machines();
  send_signal(job_.process, now ? SIGKILL : SIGTERM);
  if (!now) send_another(job_.process, SIGCONT);  // a stopped process would not answer
  return now ? fmt::format("process {} of this machine was killed, and its ranks with it", job_.process.pid)
             : fmt::format("process {} of this machine was asked to save and end (SIGTERM)",
                           job_.process.pid);
}

bool StopRequest::has_ended() const {
  if (!scheduled_) return !is_running(job_.process) && !RunLock::held(run_);
  if (!run_.empty()) {
    const auto start = read_run_start(run_);
    if (start && start->ended && start->time >= started_) return true;
  }
  return !find_job(tools_, job_);
}

}  // namespace primus::jobs
