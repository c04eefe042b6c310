#include "lm/train/trainer.h"

#include <string>
#include <utility>
#include <vector>

#include "lm/train/continued_run.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/settings/loaded_tokenizer.h"
#include "lm/train/training_run.h"

namespace primus {

namespace {

// Compares the stage with that of the run before anything else is read. In a run of another stage, data,
// length and model usually differ, too, and an error about these would hide the cause.
config::Experiment with_tokenizer_of_run(const config::Experiment& experiment,
                                         std::vector<std::string>& notes) {
  refuse_another_stage(experiment);
  return with_loaded_tokenizer(experiment, notes);
}

}  // namespace

Trainer::Trainer(const config::Experiment& experiment, const FamilyRegistry& families, Logger& log,
                 const TrainerOptions& options)
    : experiment_(with_tokenizer_of_run(experiment, notes_)),
      families_(families),
      log_(log),
      options_(options) {}

Trainer::~Trainer() = default;

void Trainer::prepare() {
  std::unique_ptr<Objective> objective = make_objective(experiment_.trainer);
  ObjectivePlan plan = objective->plan(experiment_, families_, options_.job ? options_.job->size() : 1);
  run_ = std::make_unique<Run>(std::move(objective), plan.experiment, families_, log_, options_, notes_,
                               std::move(plan.facts));
  run_->prepare();
}

TrainingSummary Trainer::run(const std::atomic<bool>& stop) {
  try {
    TrainingSummary summary = run_->execute(stop);
    run_->record_end(summary);
    return summary;
  } catch (const std::exception& error) {
    run_->record_failure(error);
    throw;
  }
}

}  // namespace primus
