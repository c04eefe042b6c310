#include "safe/supervise/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "launch/signals.h"
#include "lm/events/lost_rank.h"
#include "lm/events/run_event.h"
#include "lm/events/run_folder.h"
#include "safe/supervise/attempt.h"
#include "safe/supervise/event_facts.h"
#include "safe/supervise/event_tail.h"
#include "safe/supervise/job_processes.h"
#include "safe/supervise/run_files.h"
#include "safe/supervise/supervision_log.h"
#include "safe/supervise/time_account.h"

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

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

class Supervisor {
 public:
  explicit Supervisor(const SupervisedJob& job)
      : job_(job),
        processes_(signals_.before()),
        policy_(job.recovery),
        account_(unix_seconds()),
        log_(job.run) {}

  int run() {
    record("supervise_start", {},
           {{"command", job_.command}, {"max_restarts", job_.recovery.max_restarts}, {"host", host_name()}},
           false);
    for (bool begun = false;; begun = begun || attempt_.began()) {
      start(begun ? job_.restart(steady_seconds() - started_) : job_.command);
      const JobEnd end = watch();
      const Action action = policy_.decide(end);
      record("supervise_action", action.reason, facts_of(action));
      if (action.kind != Action::Kind::kRestart) return finish(end, action);
      announce(end, action);
      if (const auto code = wait(end, action)) return *code;
    }
  }

 private:
  void record(std::string_view kind, std::string cause, Json facts, bool times = true,
              std::optional<int> rank = {}) {
    facts["attempt"] = attempts_;
    facts["restarts"] = policy_.restarts();
    const double now = unix_seconds();
    log_.write({.kind = kind, .step = furthest_, .rank = rank, .time = now, .cause = std::move(cause)},
               std::move(facts), times ? std::optional(account_.up_to(now)) : std::nullopt);
  }

  static Json facts_of(const Action& action) {
    using Kind = Action::Kind;
    Json facts{{"action", action.kind == Kind::kRestart  ? "restart"
                          : action.kind == Kind::kFinish ? "finish"
                                                         : "give up"}};
    if (action.kind == Kind::kRestart) facts["delay"] = action.delay;
    if (action.free_bytes) facts["needs_free_bytes"] = *action.free_bytes;
    if (!action.text.empty()) facts["text"] = action.text;
    if (!action.hint.empty()) facts["hint"] = action.hint;
    return facts;
  }

  void start(const std::vector<std::string>& command) {
    ++attempts_;
    attempt_ = {};
    began_at_ = unix_seconds();
    recovering_ = attempts_ > 1;
    kills_ = memory_kills();
    sample_.reset();
    tail_.emplace(job_.run, job_.ranks);
    hang_.emplace(job_.hang, steady_seconds());
    processes_.start(command);
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
    process.last_error = last_error(job_.run / "logs" / job_.module, job_.ranks, began_at_);
    JobEnd end = attempt_.judge(process, finding, rank);
    end.time = steady_seconds();
    end.free_bytes = free_bytes(job_.run);
    // The job may have ended between the commit of a checkpoint and its event.
    const NewestCheckpoint newest = newest_checkpoint(job_.checkpoints);
    end.checkpoint_bytes = newest.bytes;
    if (end.began && newest.step <= end.step) end.checkpoint = std::max(end.checkpoint, newest.step);
    const bool is_fault = end.kind != EndKind::kDone && end.kind != EndKind::kStopped;
    if (is_fault) account_.detected(detected_at_ = unix_seconds());
    if (end.kind == EndKind::kHang) record_lost_rank(job_.run, rank.value_or(0), finding->text);
    facts["exit_code"] = end.exit_code;
    facts["checkpoint"] = end.checkpoint;
    facts["text"] = end.text;
    if (is_fault)
      record("supervise_detection", std::string(name_of(end.kind)), std::move(facts), true, end.rank);
    if (!remaining.empty()) {
      job_.say(fmt::format(
          "supervise: processes {} cannot be ended: the kernel waits for a device or a file system",
          fmt::join(remaining, ", ")));
    }
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
      if (hang_->wants_sample(now)) sample = processes_.sample(now);
      sample_ = now;
    }
    return hang_->check(now, sample);
  }

  void read_events() {
    tail_->read([&](const EventLine& event, int rank) {
      const double now = steady_seconds();
      attempt_.add(event, rank);
      if (rank != 0) return hang_->sign(now);
      if (event.event == "begin") {
        account_.begin(event.step, event.time);
        hang_->begin(now);
      } else if (event.event == "step") {
        const double seconds = seconds_of_step(event.facts);
        account_.step(event.step, seconds, event.time);
        hang_->step(seconds, now);
        recovered(event);
        furthest_ = std::max(furthest_, event.step);
      } else if (event.event == "phase") {
        const std::string what = phase_in(event.facts);
        account_.phase(what, event.time);
        hang_->phase(what, now);
      } else if (event.event == "checkpoint") {
        const bool saving = event.facts.find("durable") == std::string_view::npos;
        if (saving) account_.saving(event.step, event.time);
        hang_->saving(saving, now);
      } else if (event.event == "end") {
        hang_->ended(now);
      } else {
        hang_->sign(now);
      }
    });
  }

  // The first step after a restart.
  void recovered(const EventLine& event) {
    if (!std::exchange(recovering_, false)) return;
    record("supervise_recovered", {},
           {{"first_step", event.step},
            {"seconds", std::round(1e3 * (event.time - detected_at_)) / 1e3},
            {"repeats", std::max<std::int64_t>(0, furthest_ - event.step + 1)}});
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

  void announce(const JobEnd& end, const Action& action) const {
    const std::string rank = end.rank ? fmt::format("rank {}, ", *end.rank) : "";
    const std::string step = end.began ? fmt::format("step {}", end.step) : "before the first step";
    const std::string from = end.checkpoint > 0
                                 ? fmt::format("from the newest checkpoint (step {})", end.checkpoint)
                                 : "from the start";
    const std::string when =
        action.free_bytes
            ? fmt::format(", when the disk has {} free", human_bytes(static_cast<double>(*action.free_bytes)))
        : action.delay > 0 ? fmt::format(", in {:.0f} s", action.delay)
                           : "";
    job_.say(fmt::format("supervise: {} ({}{}): {}\nsupervise: restart {} of at most {} {}{}",
                         name_of(end.kind), rank, step, end.text.substr(0, end.text.find('\n')),
                         policy_.restarts(), job_.recovery.max_restarts, from, when));
  }

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
      if (!space && now - began >= kSpaceWait) return finish(end, without_space(action));
      const double delay = action.delay - (now - began);
      const bool locked = now - began < kLockWait && RunLock::held(job_.run);
      if (delay <= 0 && space && !locked) return std::nullopt;
      pollfd polled{signals_.fd(), POLLIN, 0};
      poll(&polled, 1, 1 + static_cast<int>(1e3 * (delay > 0 ? std::min(delay, kPause) : kPause)));
      while (const auto signal = signals_.next()) {
        if (launch::asks_to_stop(*signal) || *signal == SIGUSR1) return stopped_waiting(*signal);
      }
    }
  }

  static Action without_space(const Action& action) {
    const std::string needed = human_bytes(static_cast<double>(*action.free_bytes));
    return {.kind = Action::Kind::kGiveUp,
            .reason = action.reason,
            .text = fmt::format("the disk did not have {} free within an hour", needed),
            .hint = "free space; the same command then continues from the newest checkpoint"};
  }

  int stopped_waiting(int signal) {
    record("supervise_end", "stopped", {{"exit_code", 128 + signal}});
    job_.say(
        "supervise: stopped between two starts of the job; the same command continues from the newest "
        "checkpoint");
    return 128 + signal;
  }

  int finish(const JobEnd& end, const Action& action) {
    const bool gives_up = action.kind == Action::Kind::kGiveUp;
    const int code = end.exit_code;
    record("supervise_end", action.reason, {{"exit_code", code}});
    if (gives_up)
      job_.say(fmt::format("supervise: {}: {}\n  hint: {}", action.reason, action.text, action.hint));
    // A job without steps has no times worth a line.
    const RunTimes times = account_.up_to(unix_seconds());
    if (times.useful + times.repeated > 0 || policy_.restarts() > 0) {
      const char* const several = policy_.restarts() == 1 ? "" : "s";
      job_.say(fmt::format("supervise: {} restart{}; {}", policy_.restarts(), several, describe(times)));
    }
    return code;
  }

  const SupervisedJob& job_;
  launch::Signals signals_;
  JobProcesses processes_;
  RecoveryPolicy policy_;
  TimeAccount account_;
  SupervisionLog log_;
  std::optional<EventTail> tail_ = {};
  std::optional<HangWatch> hang_ = {};
  Attempt attempt_ = {};
  const double started_ = steady_seconds();
  int attempts_ = 0;
  bool recovering_ = false;
  std::int64_t furthest_ = 0;              // last step of all attempts
  double began_at_ = 0, detected_at_ = 0;  // seconds since 1970
  std::optional<double> sample_ = {};      // time of the last look at the processes
  std::optional<double> asked_at_ = {}, kill_at_ = {};
  std::optional<std::int64_t> kills_ = {};
};

}  // namespace

int supervise(const SupervisedJob& job) {
  // Processes of an earlier supervisor that was killed need a moment to end.
  const double until = steady_seconds() + kFirstLockWait;
  while (RunLock::held(job.run)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (steady_seconds() < until) continue;
    throw invalid(fmt::format("another process is training in '{}'", job.run.string()),
                  "wait for it or stop it, or give this run another name (exp_name)");
  }
  // The supervisor continues if the program that reads its lines has ended ('primus ... | head').
  std::signal(SIGPIPE, SIG_IGN);
  return Supervisor(job).run();
}

}  // namespace primus::supervise
