#include "safe/supervise/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "launch/signals.h"
#include "lm/events/run_folder.h"
#include "safe/supervise/attempt.h"
#include "safe/supervise/bookkeeping.h"
#include "safe/supervise/event_tail.h"
#include "safe/supervise/job_processes.h"
#include "safe/supervise/run_files.h"

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
constexpr double kLockWait = 10;      // longest wait for the run's lock, in seconds

class Supervisor {
 public:
  explicit Supervisor(const SupervisedJob& job) : job_(job), processes_(signals_.before()), books_(job) {}

  int run() {
    books_.record(
        "supervise_start", {},
        {{"command", job_.command}, {"max_restarts", job_.recovery.max_restarts}, {"host", host_name()}},
        false);
    for (;;) {
      start();
      const JobEnd end = watch();
      const Action action = books_.decide(end);
      if (action.kind != Action::Kind::kRestart) return books_.finish(end, action);
      if (const auto code = wait(end, action)) return *code;
    }
  }

 private:
  void start() {
    books_.begin();
    kills_ = memory_kills();
    sample_.reset();
    tail_.emplace(job_.run, job_.ranks);
    processes_.start(books_.continues() ? job_.restart(books_.elapsed()) : job_.command);
  }

  // ---- While the job runs -----------------------------------------------------------------------

  JobEnd watch() {
    std::optional<HangFinding> finding;
    std::optional<int> rank;
    for (bool ended = false; !ended && !finding;) {
      std::array<pollfd, 2> polled{pollfd{signals_.fd(), POLLIN, 0},
                                   pollfd{processes_.ended_fd(), POLLIN, 0}};
      poll(polled.data(), polled.size(), kTickMs);
      while (const auto signal = signals_.next()) pass_on(*signal);
      ended = (polled[1].revents & POLLIN) != 0;
      read_events();
      const double now = steady_seconds();
      if (kill_at_ && now >= *kill_at_) break;
      if (!ended) finding = look(now);
    }
    Json facts;
    if (finding) {
      if (finding->stopped) rank = JobProcesses::rank_of(*finding->stopped);
      facts["stacks"] = write_stacks(*finding);
    }
    std::vector<pid_t> remaining;
    ProcessEnd process{.exit_code = exit_code_of(processes_.end_all(remaining)),
                       .asked_to_stop = asked_at_.has_value()};
    read_events();
    const std::optional<std::int64_t> kills = memory_kills();
    process.memory_kill = kills && kills_ && *kills > *kills_;
    process.last_error = last_error(job_.run / "logs" / job_.module, job_.ranks, books_.began_at());
    const JobEnd end = books_.end(process, finding, rank, std::move(facts));
    remains_ = !remaining.empty();
    if (remains_) job_.say("supervise: " + remaining_text(remaining));
    return end;
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
    for (double next = began;;) {
      const double now = steady_seconds();
      if (!space && now >= next) {
        space = free_bytes(job_.run) >= *action.free_bytes;
        next = now + kSpaceEvery;
      }
      if (!space && now - began >= kSpaceWait) return books_.finish(end, Bookkeeping::without_space(action));
      std::vector<pid_t> remaining;
      remains_ = remains_ && !processes_.wait_for_end(remaining);
      if (remains_ && now - began >= job_.recovery.node_wait)
        return books_.give_up("processes remain", remaining_text(remaining), kHintForRemaining);
      const double delay = action.delay - (now - began);
      const bool locked = now - began < kLockWait && RunLock::held(job_.run);
      if (delay <= 0 && space && !locked && !remains_) return std::nullopt;
      pollfd polled{signals_.fd(), POLLIN, 0};
      poll(&polled, 1, 1 + static_cast<int>(1e3 * (delay > 0 ? std::min(delay, kPause) : kPause)));
      while (const auto signal = signals_.next()) {
        if (launch::asks_to_stop(*signal) || *signal == SIGUSR1) return books_.stopped_waiting(*signal);
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
  bool remains_ = false;  // processes of the last attempt that could not be ended
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
  // The supervisor continues if the program that reads its lines has ended ('primus ... | head').
  std::signal(SIGPIPE, SIG_IGN);
  return Supervisor(job).run();
}

}  // namespace primus::supervise
