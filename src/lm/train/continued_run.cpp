#include "lm/train/continued_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/optimizer/update_rule.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/settings/base_weights.h"
#include "lm/train/settings/training_settings.h"

namespace primus {

namespace {

// Returns the checkpoint that a run of this experiment would resume.
std::optional<CheckpointReader> continued_checkpoint(const config::Experiment& e) {
  const config::TrainerConfig& c = e.trainer;
  std::optional<CheckpointReader> checkpoint;
  if (c.auto_continue_train)
    checkpoint = find_resume_point(checkpoint_root_of(e), Validation::kStructure).reader;
  if (!checkpoint && c.load && !c.finetune) {
    const Path load = loaded_root(*c.load);
    if (Env::posix().status(load / Manifest::kFileName)) {
      checkpoint = CheckpointReader::open(load, Validation::kStructure);
    } else if (!Env::posix().status(load / "config.json")) {
      checkpoint = find_resume_point(load, Validation::kStructure).reader;
    }
  }
  return checkpoint;
}

}  // namespace

std::optional<TrainerState> continued_state(const config::Experiment& e) {
  const std::optional<CheckpointReader> checkpoint = continued_checkpoint(e);
  return checkpoint ? std::optional(read_trainer_state(*checkpoint)) : std::nullopt;
}

std::optional<TrainerState> own_state(const config::Experiment& e) {
  if (!e.trainer->auto_continue_train) return std::nullopt;
  const ResumePoint point = find_resume_point(checkpoint_root_of(e), Validation::kStructure);
  return point.reader ? std::optional(read_trainer_state(*point.reader)) : std::nullopt;
}

void refuse_another_stage(const config::Experiment& e) {
  const std::optional<TrainerState> state = own_state(e);
  if (!state) return;
  const config::Stage& now = config::stage_of(e.trainer);
  const std::string name = recorded_setting(*state, "stage");
  const auto before = std::ranges::find(config::stages(), name, &config::Stage::name);
  if (before == config::stages().end() || before->name == now.name) return;
  if (before->material == config::Material::kText && now.material == config::Material::kText) return;
  config::TrainerConfig saved = e.trainer;
  saved.stage = before->name;
  const bool starts_from_run =
      !objective_of(saved).trains_scores() || objective_of(e.trainer).trains_scores();
  const std::string run = e.output_dir().lexically_normal().string();
  std::string hint = "give the new run its own name: exp_name=NEW load=";
  if (e.trainer->load) {
    hint += *e.trainer->load;
    if (starts_from_run &&
        std::filesystem::weakly_canonical(*e.trainer->load) != std::filesystem::weakly_canonical(run))
      hint += fmt::format("; or exp_name=NEW load={} to start from the weights of '{}'", run, run);
  } else {
    hint += starts_from_run ? run : "MODEL";
  }
  const std::string what =
      fmt::format("'{}' is a run of stage {}, which stage {} cannot continue", run, before->name, now.name);
  // A command such as 'train dpo' chooses the stage by a preset, whose file is of no use to the user.
  const bool stated = e.provenance_of("stage").layer >= config::Layer::kOverrides;
  throw stated ? e.error_for("stage", what, hint) : invalid(what, hint);
}

std::vector<std::string> compare_with_checkpoint(const CheckpointReader& checkpoint,
                                                 const TrainerState& state, const ResumedParts& run) {
  const config::Experiment& e = run.experiment;
  refuse_another_model(checkpoint, e, run.model, run.settings.compute, run.families, Start::kContinued);
  refuse_another_batch(checkpoint, state, e);
  std::vector<std::string> warnings;
  if (run.tokenizer) warnings = compare_inputs(checkpoint, state, e, *run.tokenizer, run.data);
  if (!e.trainer->no_load_optim && has_optimizer_state(checkpoint))
    refuse_another_optimizer(checkpoint, state, e, names_of(run.settings.optimizer.rules));
  return warnings;
}

namespace {

// Returns the identity of the training data; empty if data are missing, or if reading them would write files.
std::optional<InputIdentity> identity_of_data(const config::Experiment& e, const Tokenizer& tokenizer) {
  const std::unique_ptr<Objective> objective = make_objective(e.trainer);
  std::vector<MissingInput> missing;
  objective->find_missing(e, missing);
  if (!missing.empty() || !objective->opens_at_once()) return std::nullopt;
  const data::Datasets datasets = objective->open({.experiment = e, .tokenizer = tokenizer});
  return InputIdentity{.name = objective->data_name(e.trainer), .fingerprint = datasets.train_fingerprint};
}

}  // namespace

std::optional<Continuation> plan_continuation(const config::Experiment& e, const ModelConfig& model,
                                              const SessionSettings& settings,
                                              const FamilyRegistry& families) {
  const std::optional<CheckpointReader> checkpoint = continued_checkpoint(e);
  if (!checkpoint) return std::nullopt;
  const TrainerState state = read_trainer_state(*checkpoint);
  Continuation found{.iteration = checkpoint->iteration()};
  const Path own = checkpoint_root_of(e);
  if (checkpoint->folder().parent_path() == own) {
    std::string warning = check_base_weights(*checkpoint, state, e, own);
    if (!warning.empty()) found.warnings.push_back(std::move(warning));
  }
  ResumedParts run{.experiment = e, .model = model, .settings = settings, .families = families};
  if (!missing_tokenizer(e.trainer) || kept_tokenizer(e)) {
    const std::unique_ptr<const Tokenizer> tokenizer = tokenizer_of(e);
    run.tokenizer = identity_of(*tokenizer);
    run.data = identity_of_data(e, *tokenizer);
  }
  for (std::string& warning : compare_with_checkpoint(*checkpoint, state, run))
    found.warnings.push_back(std::move(warning));
  found.compared_data = run.data && state.data;
  return found;
}

std::optional<std::int64_t> continued_expert_rounds(const config::Experiment& e) {
  if (e.trainer->moe_expert_rounds) return std::nullopt;
  const std::optional<TrainerState> state = continued_state(e);
  return state && state->expert_rounds > 0 ? std::optional(state->expert_rounds) : std::nullopt;
}

std::optional<std::int64_t> recorded_microbatch(const TrainerState& state) {
  const std::string size = recorded_setting(state, "micro_batch_size");
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), number);
  if (error != std::errc() || end != size.data() + size.size() || number < 1) return std::nullopt;
  return number;
}

std::optional<std::int64_t> continued_microbatch(const config::Experiment& e) {
  const std::optional<TrainerState> state = continued_state(e);
  return state ? recorded_microbatch(*state) : std::nullopt;
}

}  // namespace primus
