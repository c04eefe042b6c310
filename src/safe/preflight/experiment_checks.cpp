#include "safe/preflight/experiment_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files/file.h"
#include "base/log.h"
#include "base/terminal/terminal.h"
#include "config/stages.h"
#include "lm/model/family.h"
#include "lm/train/missing_inputs.h"
#include "lm/train/trainer.h"

namespace primus::preflight {
namespace {

class Findings {
 public:
  explicit Findings(NodeReport& report) : report_(report) {}
  void add(const char* check, Verdict verdict, Finding finding) {
    finding.check = check;
    finding.category = "experiment";
    finding.verdict = verdict;
    report_.findings.push_back(std::move(finding));
  }

 private:
  NodeReport& report_;
};

std::string bytes(std::int64_t value) { return human_bytes(static_cast<double>(value)); }

void check_memory(const TrainingForecast& forecast, Findings& findings) {
  const MemoryFit& fit = forecast.memory;
  if (fit.fits) {
    findings.add("experiment.memory", Verdict::kPass,
                 {.measured = fmt::format("the run needs {} of memory, and {} are free",
                                          bytes(fit.need.total()), bytes(fit.supply.device))});
  } else {
    findings.add("experiment.memory", Verdict::kFail,
                 {.measured = describe_lack(fit),
                  .wanted = "a run that fits",
                  .source = "a step measured without kernels",
                  .fix = describe_changes(fit)});
  }
}

void check_checkpoints(const config::Experiment& experiment, const TrainingForecast& forecast,
                       Findings& findings) {
  Path place = std::filesystem::absolute(experiment.output_dir());
  while (place.has_relative_path() && !Env::posix().status(place)) place = place.parent_path();
  const auto free = static_cast<double>(Env::posix().free_space(place));
  const auto one = static_cast<double>(forecast.checkpoint_bytes);
  const std::string measured = fmt::format("a checkpoint takes {}, and {} has {} free", human_bytes(one),
                                           place.string(), human_bytes(free));
  if (free >= 2 * one) {
    findings.add("experiment.checkpoints", Verdict::kPass, {.measured = measured});
    return;
  }
  findings.add("experiment.checkpoints", free < one ? Verdict::kFail : Verdict::kWarn,
               {.where = place.string(),
                .measured = measured,
                .wanted = "room for two",
                .source = "the last good one is kept until the next is whole",
                .fix = "remove old runs, or choose another place with workspace=FOLDER"});
}

// Reads a MiB of a file, or of the first file in a folder.
void read_some(const std::string& name) {
  Env& env = Env::posix();
  Path path = name;
  if (!env.status(path)) path = name + ".bin";  // a data set of Megatron-LM is named without its ending
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

void check_data(const config::Experiment& experiment, Findings& findings) {
  const std::vector<MissingInput> missing = missing_inputs(experiment);
  for (const MissingInput& input : missing) {
    findings.add("experiment.data", Verdict::kFail,
                 {.where = input.key,
                  .measured = fmt::format("{} is '{}', which is not there ({})", input.key, input.path,
                                          experiment.provenance_of(input.key).describe()),
                  .wanted = "a file or folder that can be read",
                  .source = "the experiment",
                  .fix = "mount or copy it to this machine, or set " + input.key + " to where it is"});
  }
  if (!missing.empty()) return;
  const config::TrainerConfig& c = experiment.trainer;
  int read = 0;
  const bool conversations = config::stage_of(c).material == config::Material::kConversations;
  std::vector<std::string> paths = c.mock_data ? std::vector<std::string>() : c.data_path;
  if (conversations) paths.assign(1, c.sft_dataset_name.value_or(""));
  for (const std::string& path : paths) {
    if (leading_real(path) || path.find_first_of("*?[") != std::string::npos) continue;  // weights and globs
    try {
      read_some(path);
      ++read;
    } catch (const std::exception& error) {
      findings.add("experiment.data", Verdict::kFail,
                   {.where = conversations ? "sft_dataset_name" : "data_path",
                    .measured = error.what(),
                    .wanted = "data that can be read",
                    .source = "a MiB was tried",
                    .fix = "see who may read it (ls -l), and whether its file system is in order"});
      return;
    }
  }
  if (read == 0) {
    findings.add("experiment.data", Verdict::kSkip,
                 {.measured = c.mock_data ? "mock data needs no file" : "no path to read from is named"});
  } else {
    findings.add("experiment.data", Verdict::kPass,
                 {.measured = fmt::format("{} path{} can be read", read, read == 1 ? "" : "s")});
  }
}

}  // namespace

void check_experiment(const config::Experiment& experiment, NodeReport& report) {
  Findings findings(report);
  if (experiment.framework != "native") {
    findings.add(
        "experiment.memory", Verdict::kSkip,
        {.measured = fmt::format("the memory of framework {} cannot be measured", experiment.framework)});
  } else {
    try {
      Logger log(LogOptions{.console_level = LogLevel::kError, .console = {}});
      const FamilyRegistry families = builtin_families();
      const TrainingForecast forecast = Trainer(experiment, families, log).forecast();
      check_memory(forecast, findings);
      check_checkpoints(experiment, forecast, findings);
    } catch (const Error& error) {
      findings.add("experiment.memory", Verdict::kFail,
                   {.measured = error.what(),
                    .wanted = "an experiment that can be planned",
                    .source = "a step measured without kernels",
                    .fix = error.hint().empty() ? "see to what the message names" : error.hint()});
    }
  }
  check_data(experiment, findings);
}

}  // namespace primus::preflight
