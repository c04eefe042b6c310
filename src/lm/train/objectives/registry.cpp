#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/entries.h"
#include "config/stages.h"
#include "lm/train/objectives/objective.h"

namespace primus {

#include "lm/train/objectives.def"  // generated: kAllObjectiveEntry

std::span<const ObjectiveEntry* const> objectives() {
  static const auto all =
      sorted_entries(kAllObjectiveEntry, [](const ObjectiveEntry& entry) { return entry.stage.name; });
  return all;
}

namespace {

std::size_t index_of(const config::TrainerConfig& trainer) {
  const auto all = objectives();
  const auto entry = std::ranges::find(all, config::stage_of(trainer).name,
                                       [](const ObjectiveEntry* e) { return e->stage.name; });
  PRIMUS_CHECK("objective_of", entry != all.end());
  return static_cast<std::size_t>(entry - all.begin());
}

}  // namespace

std::unique_ptr<Objective> make_objective(const config::TrainerConfig& trainer) {
  return objectives()[index_of(trainer)]->make();
}

const Objective& objective_of(const config::TrainerConfig& trainer) {
  static const auto shared = [] {
    std::vector<std::unique_ptr<Objective>> made;
    for (const ObjectiveEntry* entry : objectives()) made.push_back(entry->make());
    return made;
  }();
  return *shared[index_of(trainer)];
}

ObjectivePlan Objective::plan(config::Experiment experiment, const FamilyRegistry&, int) {
  return {.experiment = std::move(experiment)};
}

std::optional<std::int64_t> Objective::planned_samples(const DataRequest&, double) const {
  return std::nullopt;
}

std::optional<std::int64_t> Objective::filled_microbatches(const DataRequest&, const StepSettings&, int) {
  return std::nullopt;
}

void Objective::teach(const config::Experiment&, const Tokenizer&, ModelConfig&) const {}

std::optional<double> Objective::bytes_per_token(const data::Datasets&, const DataRequest&) const {
  return std::nullopt;
}

MakeLossRule Objective::loss_rule(const config::Experiment&) const { return {}; }

void Objective::prepare_session(const config::Experiment&, int, SessionSettings&) const {}

void Objective::connect(LossRule&, const DataRequest&, const data::Datasets&) const {}

}  // namespace primus
