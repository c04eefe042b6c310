// primus plan recovery
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "cli/command.h"
#include "safe/simulation/recovery_plan.h"

namespace primus::cli {
namespace {

// Reads "128,1024,16384".
std::vector<std::int64_t> numbers(const char* option, const std::string& text, std::int64_t minimum,
                                  std::int64_t maximum) {
  std::vector<std::int64_t> values;
  std::size_t at = 0;
  while (at <= text.size()) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, comma - at);
    const bool digits = !word.empty() && word.size() <= 12 &&
                        std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
    const std::int64_t value = digits ? std::stoll(word) : -1;
    if (value < minimum || value > maximum) {
      throw invalid(fmt::format("{}: '{}' is not a whole number from {} to {}", option, printable(word),
                                minimum, maximum),
                    fmt::format("separate several values by commas: {} 128,1024", option));
    }
    values.push_back(value);
    at = comma + 1;
  }
  return values;
}

constexpr double kMinute = 60;

class PlanRecovery final : public Command {
 public:
  void declare(Arguments& args) override {
    simulation::Scenario& s = request_.scenario;
    s.node_hours = std::round(simulation::published_node_hours());
    args.option("--nodes", "N,...", &nodes_, "number of nodes of the job; one row for each");
    args.option("--node-hours", "HOURS", &s.node_hours,
                "mean time between two faults of a node; the default is that of Llama 3's training on nodes "
                "with eight H100")
        .between(1e-3, 1e9);
    args.option("--spares", "N,...", &spares_, "spare nodes").default_note("as many as are needed");
    args.option("--repair-hours", "HOURS", &s.repair_hours,
                "mean time until a removed node is a spare node again")
        .between(0, 1e6);
    args.option("--step-seconds", "S", &s.step_seconds, "time of a step").between(1e-3, 1e6);
    args.option("--save-interval", "N,...", &intervals_, "steps between two checkpoints; one row for each")
        .default_note("the interval with the best goodput");
    args.option("--save-pause", "S", &s.save_pause, "time for which a save pauses training").between(0, 1e6);
    args.option("--save-seconds", "S", &s.save_seconds,
                "time of a save in the background, until a restart can use the checkpoint")
        .between(0, 1e6);
    args.option("--snapshot-interval", "N,...", &snapshots_,
                "steps between two snapshots in memory, 0 for none; one row for each")
        .default_note("0");
    args.option("--snapshot-pause", "S", &s.snapshot_pause, "time for which a snapshot pauses training")
        .between(0, 1e6);
    args.option("--snapshot-seconds", "S", &s.snapshot_seconds,
                "time from a snapshot until all ranks and the partners of their nodes have it")
        .between(0, 1e6);
    args.option("--start-seconds", "S", &s.start_seconds,
                "time from the start of the processes to the first step, with loading the checkpoint")
        .between(0, 1e6);
    args.option("--max-restarts", "N", &max_restarts_, "as in training: restarts within any 24 hours")
        .between(0, 1e6)
        .default_note("20, and one more for each 64 nodes");
    args.option("--node-wait", "MINUTES", &node_wait_,
                "as in training: time in which a removed node must return if there is no spare; then the job "
                "ends")
        .between(0, 1e6);
    args.option("--days", "DAYS", &s.days, "length of the run").between(0.01, 3650);
    args.option("--runs", "N", &runs_, "simulated runs per row").between(1, 10000);
    args.flag("--json", json_, "print as JSON");
  }

  int run(Console& console) override {
    constexpr std::int64_t kMostNodes = 10'000'000;
    request_.nodes = numbers("--nodes", nodes_, 1, kMostNodes);
    if (spares_) request_.spares = numbers("--spares", *spares_, 0, kMostNodes);
    if (intervals_) request_.intervals = numbers("--save-interval", *intervals_, 1, 1'000'000'000);
    if (snapshots_) request_.snapshots = numbers("--snapshot-interval", *snapshots_, 0, 1'000'000'000);
    if (max_restarts_) request_.max_restarts = static_cast<int>(*max_restarts_);
    request_.runs = static_cast<int>(runs_);
    request_.scenario.limits.node_wait = kMinute * node_wait_;
    ProgressLine progress(
        console.err, {.label = "simulating", .unit = "runs", .total = simulation::simulated_runs(request_)});
    const std::vector<simulation::PlanRow> rows = simulation::plan_recovery(
        request_, [&](std::uint64_t done) { progress.update(done, steady_seconds()); });
    console.write(json_ ? simulation::to_json(request_, rows) : simulation::to_text(request_, rows));
    return 0;
  }

 private:
  simulation::PlanRequest request_;
  std::string nodes_ = "16,128,1024";
  std::optional<std::string> spares_, intervals_, snapshots_;
  std::optional<std::int64_t> max_restarts_;
  std::int64_t runs_ = 20;
  double node_wait_ = simulation::Scenario{}.limits.node_wait / kMinute;
  bool json_ = false;
};

}  // namespace

extern const CommandEntry kPlanRecovery{
    "plan recovery",
    "Predicts the goodput of a supervised job, and chooses save_interval and spares",
    "Simulates runs in virtual time: nodes have faults at random, and the supervisor of --supervise decides "
    "and accounts for the time as in a real run. Goodput is the share of the time that trains steps whose "
    "result is kept. Faults have the kinds and shares that were published for Llama 3; silent corruption is "
    "left out, because it is not detected. A node that a fault removes is replaced by a spare; without "
    "spares, the job waits --node-wait for a repair, and ends, as in training. A large --node-wait shows the "
    "goodput of a job that waits for each repair.\n\n"
    "The time of a step, of a save and of a start are in the log of a run: measure them with a short run of "
    "the experiment.",
    "primus plan recovery --nodes 1024 --step-seconds 8 --save-pause 0.5 --save-seconds 40\n"
    "primus plan recovery --nodes 16,2048 --spares 0,4,16 --save-interval 50,200\n"
    "primus plan recovery --nodes 1024 --step-seconds 8 --snapshot-interval 0,1,4 --snapshot-pause 0.05\n"
    "primus plan recovery --nodes 100000 --max-restarts 1000 --json",
    make_command<PlanRecovery>,
    {Section::kPlan, 2}};

}  // namespace primus::cli
