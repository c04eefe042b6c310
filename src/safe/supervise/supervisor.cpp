#include "safe/supervise/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "launch/ranks/rank_channel.h"
#include "launch/ranks/signals.h"
#include "lm/events/run_folder.h"
#include "safe/supervise/nodes/job_processes.h"
#include "safe/supervise/observation/event_tail.h"
#include "safe/supervise/observation/run_files.h"
#include "safe/supervise/observation/wait_notice.h"
#include "safe/supervise/recovery/attempt.h"
#include "safe/supervise/recovery/bookkeeping.h"

namespace primus::supervise {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTickMs = 200;          // between looks at the events
constexpr double kSampleEvery = 1;    // seconds between looks at the processes
constexpr double kSameRequest = 1;    // seconds in which a second signal repeats the first request to stop
constexpr double kAfterSecond = 2;    // seconds from a second request to SIGKILL
constexpr double kSpaceEvery = 2;     // seconds between looks at the free space
constexpr double kSpaceWait = 3600;   // longest wait for free space, in seconds
constexpr double kPause = 0.05;       // between looks at the run's lock, in seconds
constexpr double kFirstLockWait = 5;  // longest wait for the lock at the start, in seconds
constexpr int kEndingMs = 2000;       // for ranks that wait, to end
constexpr double kLockWait = 10;      // longest wait for the run's lock, in seconds

class Supervisor {
 public:
  explicit Supervisor(const SupervisedJob& job) : job_(job), processes_(signals_.before()), books_(job) {}

  int run() {
    books_.record(
        "supervise_start", {},
        {{"command", job_.command}, {"max_restarts", job_.recovery.max_restarts}, {"host", host_name()}},
        false);
    start();
    for (;;) {
      const JobEnd end = watch();
      const Action action = books_.decide(end, keeps_ ? Rung::kRank : Rung::kJob);
      if (action.kind != Action::Kind::kRestart) {
        end_waiting();
        return books_.finish(end, action);
      }
      if (const auto code = wait(end, action)) return *code;
      if (!continue_waiting()) start();
    }
  }

 private:
  void start() {
    prepare_attempt();
    books_.begin();
    std::map<std::string, std::string> variables;
    launch::Channel of_job;
    if (job_.restarts_ranks) {
      std::tie(launcher_, of_job) = launch::Channel::pair();
      of_job.pass_on();
      variables[launch::kSupervisorChannel] = std::to_string(of_job.fd());
    }
    processes_.start(books_.continues() ? job_.restart(books_.elapsed()) : job_.command, variables);
  }

  void prepare_attempt() {
    began_at_ = unix_seconds();
    kills_ = memory_kills();
    sample_.reset();
    tail_.emplace(job_.run, job_.ranks);
  }

  // ---- Restarts of single ranks -----------------------------------------------------------------

  // The launcher reports that a rank was lost, and that the others have left the lost start. Returns the end
  // of the attempt if they may join another one.
  std::optional<JobEnd> end_of_attempt() {
    while (const std::optional<std::string> text = launcher_.receive()) {
      const std::optional<launch::LossReport> report = launch::loss_report_of(*text);
      if (!report) continue;
      // A request to stop ends all ranks, and so does another fault before the first step after a restart.
      if (asked_at_ || !books_.has_progressed()) {
        launcher_.send(to_text(std::optional<launch::JoinOrder>()));
        continue;
      }
      waits_ = true;
      keeps_ = static_cast<int>(report->replaced.size()) < job_.ranks;
      read_events();
      return books_.end(process_end(report->exit_code), std::nullopt, std::nullopt,
                        {{"replaced", report->replaced}});
    }
    return std::nullopt;
  }

  // Lets the waiting ranks join the next attempt. Returns false if there are none.
  bool continue_waiting() {
    if (!std::exchange(waits_, false)) return false;
    processes_.end_orphans();
    prepare_attempt();
    if (!launcher_.send(to_text(std::optional(launch::JoinOrder{.seconds = books_.elapsed()})))) {
      end_processes();
      return false;
    }
    books_.begin();
    return true;
  }

  // Ends ranks that wait, because there is no other attempt: they show their errors first.
  void end_waiting() {
    if (!std::exchange(waits_, false)) return;
    launcher_.send(to_text(std::optional<launch::JoinOrder>()));
    pollfd polled{processes_.ended_fd(), POLLIN, 0};
    poll(&polled, 1, kEndingMs);
    end_processes();
  }

  // ---- While the job runs -----------------------------------------------------------------------

  JobEnd watch() {
    keeps_ = false;
    std::optional<HangFinding> finding;
    std::optional<int> rank;
    for (bool ended = false; !ended && !finding;) {
      std::array<pollfd, 3> polled{pollfd{signals_.fd(), POLLIN, 0}, pollfd{processes_.ended_fd(), POLLIN, 0},
                                   pollfd{launcher_.fd(), POLLIN, 0}};
      poll(polled.data(), polled.size(), kTickMs);
      while (const auto signal = signals_.next()) pass_on(*signal);
      ended = (polled[1].revents & POLLIN) != 0;
      read_events();
      if (const std::optional<JobEnd> end = end_of_attempt()) return *end;
      books_.record_times();
      const double now = steady_seconds();
      if (kill_at_ && now >= *kill_at_) break;
      if (!ended) finding = look(now);
    }
    Json facts;
    if (finding) {
      if (finding->stopped) rank = JobProcesses::rank_of(*finding->stopped);
      facts["stacks"] = write_stacks(*finding);
    }
    const int status = end_processes();
    read_events();
    return books_.end(process_end(exit_code_of(status)), finding, rank, std::move(facts));
  }

  // Ends all processes of the job. Returns the status of the first one.
  int end_processes() {
    std::vector<pid_t> remaining;
    const int status = processes_.end_all(remaining);
    launcher_.close();
    remains_ = !remaining.empty();
    if (remains_) job_.say("supervise: " + remaining_text(remaining));
    return status;
  }

  ProcessEnd process_end(int exit_code) const {
    const std::optional<std::int64_t> kills = memory_kills();
    return {.exit_code = exit_code,
            .asked_to_stop = asked_at_.has_value(),
            .memory_kill = kills && kills_ && *kills > *kills_,
            .last_error = last_error(job_.run / "logs" / job_.module, job_.ranks, began_at_)};
  }

  void pass_on(int signal) {
    const double now = steady_seconds();
    if (!launch::asks_to_stop(signal) && signal != SIGUSR1) return processes_.send(signal);
    if (!asked_at_) {
      asked_at_ = now;
      processes_.send(signal);
    } else if (launch::asks_to_stop(signal) && !kill_at_ &&
               (signal == SIGINT || now - *asked_at_ >= kSameRequest)) {
      processes_.send(signal);
      kill_at_ = now + kAfterSecond;
    }
  }

  std::optional<HangFinding> look(double now) {
    std::optional<JobSample> sample;
    if (!sample_ || now - *sample_ >= kSampleEvery) {
      processes_.reap();
      if (books_.hang().wants_sample(now)) sample = processes_.sample(now);
      sample_ = now;
    }
    return books_.hang().check(now, sample);
  }

  void read_events() {
    tail_->read([&](const EventLine& event, int rank) { books_.add(event, rank); });
  }

  // Returns the path of the file.
  std::string write_stacks(const HangFinding& finding) {
    const Path file =
        job_.run / "logs" / fmt::format("hang-{}.txt", static_cast<std::int64_t>(unix_seconds()));
    job_.say(
        fmt::format("supervise: {}; writing the stacks of all threads to '{}'", finding.text, file.string()));
    try {
      make_folders(file.parent_path());
      write_file_atomic(file, finding.text + "\n\n" + processes_.describe());
    } catch (const Error& error) {
      job_.say(fmt::format("supervise: the stacks are not recorded: {}", error.what()));
    }
    return file.string();
  }

  // ---- Between attempts -------------------------------------------------------------------------

  // Waits before a restart. Returns an exit code if there is no restart: a request to stop arrives, or the
  // disk gets no space.
  std::optional<int> wait(const JobEnd& end, const Action& action) {
    const double began = steady_seconds();
    bool space = !action.free_bytes;
    WaitNotice notice(job_.say);
    for (double next = began;;) {
      const double now = steady_seconds();
      if (!space && now >= next) {
        space = free_bytes(job_.run) >= *action.free_bytes;
        next = now + kSpaceEvery;
      }
      if (!space) notice.waits(free_space_text(*action.free_bytes), now, began + kSpaceWait);
      if (!space && now - began >= kSpaceWait) {
        end_waiting();
        return books_.give_up_without_space(end, action);
      }
      std::vector<pid_t> remaining;
      remains_ = remains_ && !processes_.wait_for_end(remaining);
      if (remains_) notice.waits("the end of processes of the job", now, began + job_.recovery.node_wait);
      if (remains_ && now - began >= job_.recovery.node_wait)
        return books_.give_up("processes remain", remaining_text(remaining), kHintForRemaining);
      const double delay = action.delay - (now - began);
      const bool locked = now - began < kLockWait && RunLock::held(job_.run);
      if (delay <= 0 && space && !locked && !remains_) return std::nullopt;
      pollfd polled{signals_.fd(), POLLIN, 0};
      poll(&polled, 1, 1 + static_cast<int>(1e3 * (delay > 0 ? std::min(delay, kPause) : kPause)));
      while (const auto signal = signals_.next()) {
        if (!launch::asks_to_stop(*signal) && *signal != SIGUSR1) continue;
        end_waiting();
        return books_.stopped_waiting(*signal);
      }
    }
  }

  const SupervisedJob& job_;
  launch::Signals signals_;
  JobProcesses processes_;
  Bookkeeping books_;
  std::optional<EventTail> tail_ = {};
  std::optional<double> sample_ = {};  // time of the last look at the processes
  std::optional<double> asked_at_ = {}, kill_at_ = {};
  std::optional<std::int64_t> kills_ = {};
  double began_at_ = 0;            // of the attempt, in seconds since 1970
  launch::Channel launcher_ = {};  // to the job's first process, with restarts of single ranks
  bool waits_ = false;             // ranks wait for the next attempt
  bool keeps_ = false;             // not all of their processes are new
  bool remains_ = false;           // processes of the last attempt that could not be ended
};

}  // namespace

void wait_for_lock(const Path& run) {
  // Processes of an earlier supervisor that was killed need a moment to end.
  const double until = steady_seconds() + kFirstLockWait;
  while (RunLock::held(run)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (steady_seconds() < until) continue;
    throw invalid(fmt::format("another process is training in '{}'", run.string()),
                  "wait for it or stop it, or give this run another name (exp_name)");
  }
}

int supervise(const SupervisedJob& job) {
  wait_for_lock(job.run);
  forget_given_up(job.run);
  // The supervisor continues if the program that reads its lines has ended ('primus ... | head').
  std::signal(SIGPIPE, SIG_IGN);
  return Supervisor(job).run();
}

}  // namespace primus::supervise
