#include "cli/experiment.h"

#include <fmt/format.h>

namespace primus::cli {

void ExperimentArguments::declare(Arguments& arguments) {
  arguments.option("--config,--exp", "FILE", &file_, "the experiment, YAML or TOML").required = true;
  arguments.rest("overrides", overrides_,
                 "settings that replace the experiment's, e.g. lr=1e-4 --train_iters 50");
}

config::Experiment ExperimentArguments::load(const Console& console) const {
  config::Experiment experiment = config::load_experiment(file_, overrides_);
  for (const std::string& warning : experiment.warnings) console.note("warning: " + warning);
  if (!experiment.ignored.empty()) {
    console.note(fmt::format("note: without meaning for framework {}, and ignored: {}", experiment.framework,
                             fmt::join(experiment.ignored, ", ")));
  }
  return experiment;
}

}  // namespace primus::cli
