// primus watch
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cli/command.h"
#include "cli/train/stop_signal.h"
#include "safe/dashboard/access.h"
#include "safe/dashboard/http_server.h"
#include "safe/watch/node_watch.h"

namespace primus::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kUnhealthy = 2;  // exit code of 'primus preflight' for a node with a failed check
constexpr const char* kMetricsToken = "PRIMUS_DASHBOARD_TOKEN";

class Watch final : public Command {
 public:
  void declare(Arguments& args) override {
    constexpr double kDay = 86400, kMaxPort = 65535;
    args.option("--interval", "S", &interval_, "seconds between the starts of two looks").between(1, kDay);
    args.option("--looks", "N", &looks_, "end after this number of looks (default: run until a signal)")
        .between(1, 1e9);
    args.flag("--until-failure", until_failure_, "end with code 2 as soon as a check fails");
    args.option("--folder", "FOLDER", &folders_, "also check the file systems of these folders").several =
        true;
    args.option("--expected-gpus", "N", &gpus_, "number of GPUs that the node must have").between(0, 1024);
    args.flag("--skip-dmesg", skip_kernel_log_, "do not read the kernel's log");
    args.option("--port", "N", &port_, "serve the last look for Prometheus at /metrics on this port; 0: any")
        .between(0, kMaxPort);
    args.option("--host", "H", &host_, "address of --port; 0.0.0.0: all addresses, which needs a token");
    args.option("--drain", "HOW", &drain_,
                "drain the node if it stays unhealthy: none, slurm (scontrol), or "
                "kubernetes (a taint by kubectl)")
        .choices = {"none", "slurm", "kubernetes"};
    args.option("--drain-after", "N", &drain_after_,
                "looks in a row with a failed check before the node is drained")
        .between(1, 1e6);
    args.option("--node", "NAME", &node_,
                "the node's name for --drain (default: its name in Slurm, or the host's)");
    args.flag("--dry-run", dry_run_, "do not drain; report the command that would");
    args.option("--root", "FOLDER", &root_,
                "folder with the host's /proc, /sys, /etc and /dev, if a container has "
                "them elsewhere");
  }

  int run(Console& console) override {
    if (dry_run_ && drain_ == "none")
      throw invalid("--dry-run has no effect without --drain", "add --drain slurm or --drain kubernetes");
    watch::NodeWatch node(
        std::make_shared<const preflight::Machine>(preflight::MachineOptions{.root = root_}), options());
    const std::atomic<bool>& stop = catch_stop_signals();
    const auto look = [&] { console.write(node.look() + "\n"); };
    if (port_) {
      serve(node, look, stop, console);
    } else {
      for (Clock::time_point next = Clock::now(); !stop && !done(node); next += interval()) {
        while (!stop && Clock::now() < next) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        if (!stop) look();
      }
    }
    return node.verdict() == preflight::Verdict::kFail ? kUnhealthy : 0;
  }

 private:
  std::chrono::milliseconds interval() const {
    constexpr double kMilliseconds = 1e3;
    return std::chrono::milliseconds(static_cast<std::int64_t>(kMilliseconds * interval_));
  }

  bool done(const watch::NodeWatch& node) const {
    return (looks_ && node.looks() >= *looks_) ||
           (until_failure_ && node.looks() > 0 && node.verdict() == preflight::Verdict::kFail);
  }

  watch::NodeWatchOptions options() const {
    preflight::NodeOptions node;
    for (const std::string& folder : folders_) node.questions.folders.emplace_back("--folder", folder);
    node.questions.read_kernel_log = !skip_kernel_log_;
    if (gpus_) node.wanted.gpus = preflight::Wanted{static_cast<double>(*gpus_), "--expected-gpus"};
    return {.node = std::move(node),
            .drain = drain_ == "slurm"        ? watch::Drain::kSlurm
                     : drain_ == "kubernetes" ? watch::Drain::kKubernetes
                                              : watch::Drain::kNone,
            .drain_after = static_cast<int>(drain_after_),
            .dry_run = dry_run_,
            .name = node_.value_or("")};
  }

  // Looks and serves in turn. While a look runs, requests wait.
  void serve(watch::NodeWatch& node, const std::function<void()>& look, const std::atomic<bool>& stop,
             Console& console) const {
    std::optional<dashboard::Access> access;
    dashboard::HttpServer server(host_, static_cast<int>(*port_), [&](const dashboard::Request& request) {
      if (const auto refused = access->refuse(request)) return *refused;
      if (request.path != "/metrics") return dashboard::Reply{.status = 404, .body = "see /metrics\n"};
      return dashboard::Reply{.type = "text/plain; version=0.0.4; charset=utf-8", .body = node.metrics()};
    });
    const char* const variable = std::getenv(kMetricsToken);
    const std::string given = variable ? variable : "";
    const bool open = dashboard::is_loopback(host_);
    access.emplace(!given.empty() || open ? given : dashboard::Access::new_token(), server.port());
    if (!open && given.empty())
      throw invalid("with this --host, other machines can read the page",
                    fmt::format("set the environment variable {} to a secret of at least 16 characters",
                                kMetricsToken));
    console.note(fmt::format("note: http://{}:{}/metrics", host_, server.port()));
    Clock::time_point next = Clock::now();
    std::atomic<bool> ends{false};
    server.serve(
        [&] {
          if (Clock::now() >= next && !stop) {
            look();
            next += interval();
          }
          ends = stop || done(node);
          constexpr std::chrono::milliseconds kLongest(200);
          const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now());
          return std::clamp(left, std::chrono::milliseconds(1), kLongest);
        },
        ends);
  }

  double interval_ = 60;
  std::optional<std::int64_t> looks_, gpus_, port_;
  bool until_failure_ = false, skip_kernel_log_ = false, dry_run_ = false;
  std::vector<std::string> folders_;
  std::string host_ = "127.0.0.1", drain_ = "none", root_ = "/";
  std::int64_t drain_after_ = 2;
  std::optional<std::string> node_;
};

}  // namespace

extern const CommandEntry kWatch{
    "watch",
    "Repeats the checks of preflight on this node during a job",
    "Every --interval seconds, checks the host, the GPUs and the network of this machine, without measuring "
    "speeds, and prints one line of JSON: the verdict, all findings that did not pass, and the changes "
    "since the last round of checks (look). Run one process per node during a job, for example 'srun "
    "--overlap primus watch'.\n\nWithout --drain, the program changes nothing. With --drain, a node that "
    "fails --drain-after looks in a row is drained once: running jobs continue, and no further job starts "
    "there. The exit code is 2 if a check failed in the last look, otherwise 0. docs/preflight.md describes "
    "the lines and metrics.",
    "primus watch\n"
    "primus watch --interval 300 --port 9400\n"
    "primus watch --looks 1\n"
    "primus watch --drain slurm --dry-run",
    make_command<Watch>,
    {Section::kMachine, 3}};

}  // namespace primus::cli
