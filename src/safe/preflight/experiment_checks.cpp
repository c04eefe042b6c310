#include "safe/preflight/experiment_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files/file.h"
#include "base/log.h"
#include "base/terminal/terminal.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "lm/model/family.h"
#include "lm/train/settings/missing_inputs.h"
#include "lm/train/trainer.h"

namespace primus::preflight {

struct ExperimentFacts {
  const config::Experiment& experiment;
  std::optional<TrainingForecast> forecast;  // the native engine's forecast
  std::string problem, hint;  // why there is no forecast; empty: the framework does not support one
};

namespace {

std::string bytes(std::int64_t value) { return human_bytes(static_cast<double>(value)); }

void judge_memory(const CheckInput& in, Judge& judge) {
  const ExperimentFacts& facts = in.facts<ExperimentFacts>();
  if (!facts.problem.empty()) {
    judge.fail({.measured = facts.problem,
                .wanted = "an experiment that can be planned",
                .source = "a step measured without kernels",
                .fix = facts.hint.empty() ? "fix the cause that the message names" : facts.hint});
  } else if (!facts.forecast) {
    judge.skip(fmt::format("the memory of framework {} cannot be measured", facts.experiment.framework));
  } else if (const MemoryFit& fit = facts.forecast->memory; fit.fits) {
    judge.pass(fmt::format("the run needs {} of memory, but {} are free", bytes(fit.need.total()),
                           bytes(fit.supply.device)));
  } else {
    judge.fail({.measured = describe_lack(fit),
                .wanted = "a run that fits",
                .source = "a step measured without kernels",
                .fix = describe_changes(fit)});
  }
}

void judge_checkpoints(const CheckInput& in, Judge& judge) {
  const ExperimentFacts& facts = in.facts<ExperimentFacts>();
  if (!facts.forecast) return;
  Path place = std::filesystem::absolute(facts.experiment.output_dir());
  while (place.has_relative_path() && !Env::posix().status(place)) place = place.parent_path();
  const auto free = static_cast<double>(Env::posix().free_space(place));
  const auto one = static_cast<double>(facts.forecast->checkpoint_bytes);
  const std::string measured = fmt::format("a checkpoint needs {}, but {} has {} free", human_bytes(one),
                                           place.string(), human_bytes(free));
  if (free >= 2 * one) {
    judge.pass(measured);
    return;
  }
  Finding finding{.where = place.string(),
                  .measured = measured,
                  .wanted = "room for two",
                  .source = "the last good checkpoint is kept until the next one is complete",
                  .fix = "remove old runs, or choose another folder with workspace=FOLDER"};
  free < one ? judge.fail(std::move(finding)) : judge.warn(std::move(finding));
}

// Reads 1 MiB of a file, or of the first file in a folder.
void read_some(const std::string& name) {
  Env& env = Env::posix();
  Path path = name;
  if (!env.status(path)) path = name + ".bin";  // Megatron-LM data sets are named without their extension
  for (int depth = 0; depth < 8; ++depth) {
    const auto status = env.status(path);
    if (!status || status->type != FileStatus::Type::kFolder) break;
    const std::vector<std::string> names = env.list(path);
    if (names.empty()) return;
    path /= names.front();
  }
  std::vector<std::byte> buffer(1 << 20);
  env.open(path, OpenMode::kRead)->read_at(buffer, 0);
}

void judge_data(const CheckInput& in, Judge& judge) {
  const config::Experiment& experiment = in.facts<ExperimentFacts>().experiment;
  const std::vector<MissingInput> missing = missing_inputs(experiment);
  for (const MissingInput& input : missing) {
    judge.fail({.where = input.key,
                .measured = fmt::format("{} is '{}', which does not exist ({})", input.key, input.path,
                                        experiment.provenance_of(input.key).describe()),
                .wanted = "a file or folder that can be read",
                .source = "the experiment",
                .fix = "mount or copy it to this machine, or set " + input.key + " to where it is"});
  }
  if (!missing.empty()) return;
  const config::TrainerConfig& c = experiment.trainer;
  int read = 0;
  const bool conversations = config::stage_of(c).material != config::Material::kText;
  std::vector<std::string> paths = c.mock_data ? std::vector<std::string>() : c.data_path;
  if (conversations) paths.assign(1, c.sft_dataset_name.value_or(""));
  for (const std::string& path : paths) {
    // skips weights of a blend, and globs
    if (leading_real(path) || path.find_first_of("*?[") != std::string::npos) continue;
    try {
      read_some(path);
      ++read;
    } catch (const std::exception& error) {
      judge.fail({.where = conversations ? "sft_dataset_name" : "data_path",
                  .measured = error.what(),
                  .wanted = "data that can be read",
                  .source = "a MiB was tried",
                  .fix = "check its permissions (ls -l) and its file system"});
      return;
    }
  }
  if (read == 0) {
    judge.skip(c.mock_data ? "mock data needs no file" : "the experiment names no path to read from");
  } else {
    judge.pass(fmt::format("{} path{} can be read", read, read == 1 ? "" : "s"));
  }
}

}  // namespace

void check_experiment(const config::Experiment& experiment, NodeReport& report) {
  ExperimentFacts facts{.experiment = experiment};
  if (experiment.framework == "native") {
    try {
      Logger log(LogOptions{.console_level = LogLevel::kError, .console = {}});
      const FamilyRegistry families = builtin_families();
      facts.forecast = Trainer(experiment, families, log).forecast();
    } catch (const Error& error) {
      facts.problem = error.what();
      facts.hint = error.hint();
    }
  }
  judge_group("experiment", facts, report.findings);
}

extern const Check kExperimentMemory{"experiment.memory", "experiment",
                                     "Does the run fit the machine's memory?", judge_memory};
extern const Check kExperimentCheckpoints{.name = "experiment.checkpoints",
                                          .category = "experiment",
                                          .question = "Is there enough disk space for two checkpoints?",
                                          .judge = judge_checkpoints,
                                          .may_be_silent = true};
extern const Check kExperimentData{"experiment.data", "experiment", "Can the training data be read?",
                                   judge_data};

}  // namespace primus::preflight
