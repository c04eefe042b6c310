// primus stop
#include "safe/jobs/stop.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/error.h"
#include "cli/command.h"
#include "cli/train/stop_signal.h"
#include "lm/report/run_list.h"

namespace primus::cli {
namespace {

jobs::Tools tools_here() {
  const char* const path = std::getenv("PATH");
  return jobs::Tools(path ? path : "/usr/bin:/bin");
}

class Stop final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("RUN", &target_, "folder of the run, or a job as 'primus jobs' names it").required = true;
    args.flag("--wait,-w", wait_, "wait until the run has ended, and show its progress");
    args.flag("--now", now_, "end the run without saving: the steps after its newest checkpoint are lost");
  }

  int run(Console& console) override {
    const jobs::Tools tools = tools_here();
    jobs::StopRequest request(target_, tools);
    console.print(request.send(now_) + "\n");
    if (!wait_) return 0;
    if (!wait(request, console)) {
      console.note("no longer waiting; the run still ends");
      return kInterrupted;
    }
    if (request.run().empty()) {
      console.print("the job has ended\n");
      return 0;
    }
    const RunStatus status = run_status(request.run());
    console.print(fmt::format("the run has ended: {} at step {}{}\n", name_of(status.state), status.step,
                              status.reason.empty() ? "" : ", " + status.reason));
    if (!status.failure.empty()) console.print(Color::kRed, "  " + status.failure + "\n");
    const bool lost = status.state == RunState::kCrashed || status.state == RunState::kDamaged;
    return lost && !now_ ? kFailed : 0;
  }

 private:
  static constexpr int kFailed = 3, kInterrupted = 130;

  // Returns false after Ctrl-C.
  static bool wait(const jobs::StopRequest& request, Console& console) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kFirst{100}, kLongest{5000}, kSlice{50}, kNotice{5000};
    const std::atomic<bool>& stop = catch_stop_signals();
    std::chrono::milliseconds pause = kFirst;
    const auto begin = Clock::now();
    auto noticed = begin;
    while (!request.has_ended()) {
      const auto now = Clock::now();
      if (now - noticed >= kNotice) {
        noticed = now;
        const double waited = std::chrono::duration<double>(now - begin).count();
        console.note(fmt::format(
            "waiting for {}{}", human_duration(waited),
            request.run().empty() ? ""
                                  : fmt::format(": the run is at step {}", run_status(request.run()).step)));
      }
      // Schedulers are asked less often than the operating system, because all users share them.
      for (const auto next = now + pause; !stop && Clock::now() < next;) std::this_thread::sleep_for(kSlice);
      if (stop) return false;
      pause = std::min(pause * 2, kLongest);
    }
    return true;
  }

  std::string target_;
  bool wait_ = false, now_ = false;
};

}  // namespace

extern const CommandEntry kStop{
    "stop",
    "Asks a run to save and end, wherever it runs",
    "The run finishes its step, saves and ends; the same training command continues it. A supervised run is "
    "not restarted. The kind of request depends on the place of the run, which its events record. On this "
    "machine, its process gets SIGTERM. In a Slurm job, its ranks get SIGUSR1 from scancel, and a job that "
    "waits is cancelled. On Kubernetes, the job is deleted, and the pods have their grace period to "
    "save.\n\nA run without a scheduler must be stopped on the machine of its rank 0. With --wait, the exit "
    "code is 3 if the run lost steps. Exit code 2: the run is not running, or is running on another machine.",
    "primus stop output/team/me/run\n"
    "primus stop output/team/me/run --wait\n"
    "primus stop output/team/me/run --now\n"
    "primus stop slurm:4711\n"
    "primus stop k8s:team/llama",
    make_command<Stop>,
    {Section::kTrain, 15}};

}  // namespace primus::cli
