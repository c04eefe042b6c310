#include "cli/train/supervise_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/options/own_command.h"
#include "cli/train/alert_sender.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "lm/events/run_folder.h"
#include "lm/events/run_job.h"
#include "lm/events/supervision_alerts.h"
#include "lm/events/supervisor_record.h"
#include "lm/train/settings/training_settings.h"
#include "safe/supervise/nodes/node_supervisor.h"
#include "safe/supervise/recovery/snapshot_home.h"
#include "turbo/devices/devices.h"

namespace primus::cli {
namespace {

constexpr double kMinute = 60;

// Removes an option without a value, or (`with_value`) the option and its value.
void remove_option(std::vector<std::string>& words, std::string_view name, bool with_value) {
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string word = words[i].substr(0, words[i].find('='));
    std::replace(word.begin(), word.end(), '_', '-');
    if (word != name) {
      kept.push_back(words[i]);
    } else if (with_value && words[i].size() == word.size()) {
      ++i;
    }
  }
  words = std::move(kept);
}

// Returns the job's secret of PRIMUS_JOB_TOKEN or PRIMUS_JOB_TOKEN_FILE; empty: neither is set.
std::string job_token() {
  const auto only_the_token = [](const char* name) -> const char* {
    const std::string_view wanted = name;
    if (wanted.starts_with("PRIMUS_JOB_TOKEN")) return std::getenv(name);
    return wanted == "RANK" ? "0" : wanted == "WORLD_SIZE" ? "1" : nullptr;
  };
  return comm::JobEnvironment::read(only_the_token)->token;
}

// Returns the switches above each of the job's `nodes` nodes, as the launcher tells them; empty: unknown.
std::vector<std::vector<int>> switches_of_nodes(std::int64_t nodes) {
  const char* const text = std::getenv(kNodeOrder);
  const nlohmann::json order = nlohmann::json::parse(text ? text : "", nullptr, false);
  if (!order.is_object() || !order.contains("switches")) return {};
  std::vector<std::vector<int>> switches;
  try {
    switches = order["switches"].get<std::vector<std::vector<int>>>();
  } catch (const nlohmann::json::exception&) {  // a variable of the user
  }
  if (static_cast<std::int64_t>(switches.size()) != nodes) switches.clear();
  return switches;
}

// A process counts exit_duration_in_mins from its own start.
double minutes_left(double minutes, double seconds) {
  constexpr double kLeast = 1e-3;
  return std::max(kLeast, minutes - seconds / kMinute);
}

// Returns the words that continue the run, `seconds` after the supervisor started.
std::vector<std::string> restart_words(std::vector<std::string> words, bool continues,
                                       const std::optional<double>& minutes, double seconds) {
  // The first process has written the file, and moved older checkpoints away.
  remove_option(words, "--export-config", true);
  remove_option(words, "--overwrite", false);
  if (!continues) words.emplace_back("auto_continue_train=true");
  if (minutes) words.push_back(fmt::format("exit_duration_in_mins={}", minutes_left(*minutes, seconds)));
  return words;
}

// Returns the folder for snapshots in memory; null if the run takes none.
std::unique_ptr<supervise::SnapshotHome> home_of_snapshots(
    const supervise::SupervisedJob& job, const config::TrainerConfig& trainer,
    const std::optional<supervise::SupervisedNodes>& nodes) {
  if (trainer.snapshot_interval == 0) return nullptr;
  // A job that trains in the same folder of the run also uses this folder.
  // With several machines, other ones may train, and this one return; the supervisors look for it.
  if (!nodes) supervise::wait_for_lock(job.run);
  constexpr double kMiB = 1 << 20;
  const supervise::SnapshotHome::Options options{
      .run = job.run,
      .ranks = job.ranks,
      .bytes_per_second = kMiB * static_cast<double>(trainer.snapshot_copy_rate)};
  return std::make_unique<supervise::SnapshotHome>(options, nodes);
}

}  // namespace

void continue_run(config::Experiment& experiment, double seconds) {
  config::TrainerConfig& trainer = experiment.trainer;
  trainer.auto_continue_train = true;
  if (trainer.exit_duration_in_mins)
    trainer.exit_duration_in_mins = minutes_left(*trainer.exit_duration_in_mins, seconds);
}

bool restarts_single_ranks(const config::Experiment& experiment) {
  return turbo::choose_device(device_spec_of(experiment)).kind == "cpu";
}

std::vector<std::string> without_supervise(const std::vector<std::string>& words) {
  std::vector<std::string> kept = words;
  remove_option(kept, "--supervise", false);
  remove_option(kept, "--max-restarts", true);
  remove_option(kept, "--spares", true);
  remove_option(kept, "--node-wait", true);
  remove_option(kept, "--restart-all", false);
  return kept;
}

void SuperviseOptions::declare(Arguments& arguments) {
  arguments.flag("--supervise", supervise_,
                 "watch the run, and restart it from its newest checkpoint after a crash, a lost rank, a "
                 "hang or a full disk "
                 "(docs/supervise.md)");
  arguments
      .option("--max-restarts,--max_restarts", "N", &max_restarts_,
              "with --supervise: at most N restarts within 24 hours")
      .between(0, 1e6)
      .default_note("20, and one more for each 64 machines");
  arguments
      .option("--spares", "N", &spares_,
              "with --supervise and --nnodes: N of the machines wait, and take the place of a lost one")
      .between(0, 1e6);
  arguments
      .option("--node-wait,--node_wait", "MINUTES", &node_wait_,
              "with --supervise and --nnodes: time in which a lost machine must return if there is no spare; "
              "then the job ends")
      .between(0, 1e6)
      .default_note("1");
  arguments.flag("--restart-all,--restart_all", restart_all_,
                 "with --supervise: after the loss of a rank, start all ranks again, and keep no living "
                 "process");
}

void SuperviseOptions::check(std::int64_t nodes, const std::optional<comm::JobEnvironment>& place) const {
  if (!supervise_) {
    if (!max_restarts_ && spares_ == 0 && !node_wait_ && !restart_all_) return;
    const char* const option = max_restarts_  ? "--max-restarts"
                               : spares_ > 0  ? "--spares"
                               : restart_all_ ? "--restart-all"
                                              : "--node-wait";
    throw invalid(fmt::format("{} needs --supervise", option),
                  fmt::format("add --supervise, or remove {}", option));
  }
  // If two machines lose each other, only the leader may continue, so a spare could not take its place.
  constexpr std::int64_t kLeast = 2;
  if (spares_ > 0 && nodes > 0 && nodes - spares_ < kLeast) {
    throw invalid(
        fmt::format("--spares {} of {} machine{} leaves fewer than two for the ranks", spares_, nodes,
                    nodes == 1 ? "" : "s"),
        "add machines (--nnodes, or -N of Slurm), or lower --spares; one machine and one spare cannot "
        "decide which of them is lost");
  }
  if (place && place->world > 1) {
    throw invalid(
        fmt::format("--supervise starts the ranks itself, but a launcher has started this process as one "
                    "of {} ranks",
                    place->world),
        "start one process per machine, and let it start the ranks: --supervise --nproc N");
  }
}

supervise::SupervisedJob SuperviseOptions::job(const config::Experiment& experiment, int ranks,
                                               std::int64_t nodes) const {
  const config::TrainerConfig& trainer = experiment.trainer;
  std::vector<std::string> words = without_supervise(own_command());
  if (nodes > 1) {
    // The supervisors set these options for each attempt.
    for (const char* const option : {"--nnodes", "--node-rank", "--master-addr", "--master-port"})
      remove_option(words, option, true);
  }
  remove_option(words, "--dry-run", false);  // the plan shows the command that would run
  const RunFolder folder = run_folder_of(experiment);
  supervise::SupervisedJob job{.command = std::move(words),
                               .run = folder.root(),
                               .checkpoints = checkpoint_root_of(experiment),
                               .module = experiment.module_name,
                               .ranks = ranks,
                               .restarts_ranks = ranks > 1 && nodes == 1 && !restart_all_};
  job.restart = [words = job.command, continues = trainer.auto_continue_train,
                 minutes = trainer.exit_duration_in_mins](double seconds) {
    return restart_words(words, continues, minutes, seconds);
  };
  job.recovery.max_restarts =
      max_restarts_ ? static_cast<int>(*max_restarts_) : supervise::usual_max_restarts(nodes);
  if (node_wait_) job.recovery.node_wait = kMinute * *node_wait_;
  job.hang.patience = kMinute * static_cast<double>(trainer.distributed_timeout_minutes);
  // Ranks notice after the same time that a peer hangs, end, and name its last collective.
  constexpr double kForRanks = 5;
  if (ranks > 1 || nodes > 1) job.hang.for_ranks = kForRanks;
  // A step with generated answers may wait for reward servers, tools and environments.
  if (config::stage_of(trainer).material == config::Material::kPrompts)
    job.hang.for_services = job.hang.patience;
  return job;
}

int SuperviseOptions::run(const config::Experiment& experiment, int ranks, const RankOptions& place,
                          Console& console) const {
  supervise::SupervisedJob job = this->job(experiment, ranks, place.machines());
  job.say = [&console](const std::string& line) { console.note(line); };
  // Only the supervisor that leads reports. Any supervisor may become the leader.
  const AlertSender alerts(watch::parse_alerts(experiment.trainer->alerts), job.run.string());
  job.tell = [&alerts](const RunEvent& event) { alerts.send(event); };
  ::setenv(kSupervisedVariable, job.run.c_str(), 1);
  if (place.machines() == 1) {
    const auto snapshots = home_of_snapshots(job, experiment.trainer, std::nullopt);
    return supervise::supervise(job);
  }
  const supervise::SupervisedNodes nodes{.nodes = static_cast<int>(place.machines()),
                                         .places = static_cast<int>(place.nodes()),
                                         .node = static_cast<int>(place.node()),
                                         .address = place.master_address(),
                                         .port = place.master_port(),
                                         .token = job_token(),
                                         .first_wait = job.hang.patience,
                                         .switches = switches_of_nodes(place.machines())};
  const SupervisorRecord record(job.run, place.node() == 0);
  const auto snapshots = home_of_snapshots(job, experiment.trainer, nodes);
  return supervise::supervise_nodes(job, nodes);
}

std::string SuperviseOptions::plan(const config::Experiment& experiment, int ranks,
                                   std::int64_t nodes) const {
  const supervise::SupervisedJob planned = job(experiment, ranks, nodes);
  const supervise::RecoveryLimits& limits = planned.recovery;
  std::string text = fmt::format(
      "supervise:\n"
      "  job               {}\n"
      "  records           {}\n"
      "  restarts          at most {} within {:.0f} hours, from the newest checkpoint in {}\n"
      "  delay             0 s after a new checkpoint, then {:.0f} s, doubled up to {:.0f} s\n"
      "  crash loop        {} ends in a row with the same error, or by the same rank without a new "
      "checkpoint; {} "
      "by any ranks; {} times a NaN in the same step\n"
      "  hang              no step for {:.0f} s or {:.0f} step times, and no process works; {:.0f} s in "
      "other phases\n",
      fmt::join(planned.command, " "), (planned.run / "events" / "supervisor.jsonl").string(),
      limits.max_restarts, limits.budget_seconds / 3600, planned.checkpoints.string(), limits.first_delay,
      limits.max_delay, limits.loop, limits.mixed_loop, limits.nan_loop,
      std::max(planned.hang.shortest, planned.hang.for_services) + planned.hang.for_ranks, planned.hang.steps,
      planned.hang.patience);
  if (planned.restarts_ranks)
    text += fmt::format("  lost rank         {}\n", restarts_single_ranks(experiment)
                                                        ? "only its process is new (rank restart)"
                                                        : "all ranks start again");
  if (const std::int64_t steps = experiment.trainer->snapshot_interval; steps > 0) {
    text += fmt::format("  snapshots         every {} step{} in memory (/dev/shm){}\n", steps,
                        steps == 1 ? "" : "s", nodes > 1 ? ", with a copy on another machine" : "");
  }
  if (nodes > 1) {
    text += fmt::format(
        "  machines          {} with {} rank{} each, and {} spare{}; one supervisor on each, and machine 0 "
        "leads first\n"
        "  lost machine      no message for {:.0f} s, or its connection ended; {:.0f} s to return or for a "
        "spare\n"
        "  lost leader       the others end their ranks after {:.0f} s; the lowest that reaches a majority "
        "leads; "
        "without one, they end after {:.0f} s\n",
        nodes, ranks, ranks == 1 ? "" : "s", spares_, spares_ == 1 ? "" : "s", supervise::kNodeSilence,
        limits.node_wait, supervise::kLeaderSilence, supervise::kLeaderWait);
  }
  return text;
}

nlohmann::json SuperviseOptions::plan_json(const config::Experiment& experiment, int ranks,
                                           std::int64_t nodes) const {
  const supervise::SupervisedJob planned = job(experiment, ranks, nodes);
  nlohmann::json plan = {
      {"command", planned.command},
      {"max_restarts", planned.recovery.max_restarts},
      {"crash_loop", planned.recovery.loop},
      {"hang_seconds", std::max(planned.hang.shortest, planned.hang.for_services) + planned.hang.for_ranks},
      {"hang_steps", planned.hang.steps},
      {"patience_seconds", planned.hang.patience}};
  plan["rank_restarts"] = planned.restarts_ranks && restarts_single_ranks(experiment);
  if (experiment.trainer->snapshot_interval > 0)
    plan["snapshot_interval"] = experiment.trainer->snapshot_interval;
  if (nodes > 1) {
    plan["machines"] = nodes;
    plan["spares"] = spares_;
    plan["node_wait_seconds"] = planned.recovery.node_wait;
  }
  return plan;
}

}  // namespace primus::cli
