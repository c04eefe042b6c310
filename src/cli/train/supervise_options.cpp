#include "cli/train/supervise_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/options/own_command.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "lm/events/run_folder.h"
#include "lm/train/settings/training_settings.h"

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

// Returns the words that continue the run, `seconds` after the supervisor started.
std::vector<std::string> restart_words(std::vector<std::string> words, bool continues,
                                       const std::optional<double>& minutes, double seconds) {
  // The first process has written the file, and moved older checkpoints away.
  remove_option(words, "--export-config", true);
  remove_option(words, "--overwrite", false);
  if (!continues) words.emplace_back("auto_continue_train=true");
  if (minutes) {
    // A process counts this time from its own start.
    constexpr double kLeast = 1e-3;
    words.push_back(fmt::format("exit_duration_in_mins={}", std::max(kLeast, *minutes - seconds / kMinute)));
  }
  return words;
}

}  // namespace

std::vector<std::string> without_supervise(const std::vector<std::string>& words) {
  std::vector<std::string> kept = words;
  remove_option(kept, "--supervise", false);
  remove_option(kept, "--max-restarts", true);
  return kept;
}

void SuperviseOptions::declare(Arguments& arguments) {
  arguments.flag(
      "--supervise", supervise_,
      "watch the run on this machine, and restart it from its newest checkpoint after a crash, a lost "
      "rank, a hang or a full disk (docs/supervise.md)");
  arguments
      .option("--max-restarts,--max_restarts", "N", &max_restarts_,
              "with --supervise: at most N restarts within 24 hours")
      .between(0, 1e6)
      .default_note(supervise::RecoveryLimits().max_restarts);
}

void SuperviseOptions::check(std::int64_t nodes, const std::optional<comm::JobEnvironment>& place) const {
  if (!supervise_) {
    if (!max_restarts_) return;
    throw invalid("--max-restarts needs --supervise", "add --supervise, or remove --max-restarts");
  }
  if (nodes > 1) {
    throw invalid(
        fmt::format("--supervise restarts the job of one machine, but this job has {} machines", nodes),
        "remove --supervise; under Slurm, 'primus slurm sbatch --requeue' starts the job again after a "
        "fault (docs/launch.md)");
  }
  if (place && place->world > 1) {
    throw invalid(
        fmt::format("--supervise starts the ranks itself, but a launcher has started this process as one "
                    "of {} ranks",
                    place->world),
        "start one process per machine, and let it start the ranks: --supervise --nproc N");
  }
}

supervise::SupervisedJob SuperviseOptions::job(const config::Experiment& experiment, int ranks) const {
  const config::TrainerConfig& trainer = experiment.trainer;
  std::vector<std::string> words = without_supervise(own_command());
  remove_option(words, "--dry-run", false);  // the plan shows the command that would run
  const RunFolder folder = run_folder_of(experiment);
  supervise::SupervisedJob job{.command = std::move(words),
                               .run = folder.root(),
                               .checkpoints = checkpoint_root_of(experiment),
                               .module = experiment.module_name,
                               .ranks = ranks};
  job.restart = [words = job.command, continues = trainer.auto_continue_train,
                 minutes = trainer.exit_duration_in_mins](double seconds) {
    return restart_words(words, continues, minutes, seconds);
  };
  if (max_restarts_) job.recovery.max_restarts = static_cast<int>(*max_restarts_);
  job.hang.patience = kMinute * static_cast<double>(trainer.distributed_timeout_minutes);
  // Ranks notice after the same time that a peer hangs, end, and name its last collective.
  constexpr double kForRanks = 5;
  if (ranks > 1) job.hang.for_ranks = kForRanks;
  // A step with generated answers may wait for reward servers, tools and environments.
  if (config::stage_of(trainer).material == config::Material::kPrompts)
    job.hang.for_services = job.hang.patience;
  return job;
}

int SuperviseOptions::run(const config::Experiment& experiment, int ranks, Console& console) const {
  supervise::SupervisedJob job = this->job(experiment, ranks);
  job.say = [&console](const std::string& line) { console.note(line); };
  return supervise::supervise(job);
}

std::string SuperviseOptions::plan(const config::Experiment& experiment, int ranks) const {
  const supervise::SupervisedJob planned = job(experiment, ranks);
  const supervise::RecoveryLimits& limits = planned.recovery;
  std::string text = fmt::format(
      "supervise:\n"
      "  job               {}\n"
      "  records           {}\n"
      "  restarts          at most {} within {:.0f} hours, from the newest checkpoint in {}\n"
      "  delay             0 s after a new checkpoint, then {:.0f} s, doubled up to {:.0f} s\n"
      "  crash loop        {} ends in a row with the same error or without a new checkpoint; {} times a "
      "NaN in the same step\n"
      "  hang              no step for {:.0f} s or {:.0f} step times, and no process works; {:.0f} s in "
      "other phases\n",
      fmt::join(planned.command, " "), (planned.run / "events" / "supervisor.jsonl").string(),
      limits.max_restarts, limits.budget_seconds / 3600, planned.checkpoints.string(), limits.first_delay,
      limits.max_delay, limits.loop, limits.nan_loop,
      std::max(planned.hang.shortest, planned.hang.for_services) + planned.hang.for_ranks, planned.hang.steps,
      planned.hang.patience);
  return text;
}

nlohmann::json SuperviseOptions::plan_json(const config::Experiment& experiment, int ranks) const {
  const supervise::SupervisedJob planned = job(experiment, ranks);
  return {
      {"command", planned.command},
      {"max_restarts", planned.recovery.max_restarts},
      {"crash_loop", planned.recovery.loop},
      {"hang_seconds", std::max(planned.hang.shortest, planned.hang.for_services) + planned.hang.for_ranks},
      {"hang_steps", planned.hang.steps},
      {"patience_seconds", planned.hang.patience}};
}

}  // namespace primus::cli
