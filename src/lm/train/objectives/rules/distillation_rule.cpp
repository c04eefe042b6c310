#include "lm/train/objectives/rules/distillation_rule.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/error.h"
#include "config/trainer_config.h"
#include "lm/generate/model_folder.h"
#include "lm/model/weights.h"
#include "lm/tokenizer/simple.h"
#include "lm/train/objectives/reference_model.h"
#include "lm/train/step/session.h"
#include "lm/train/step/token_scorer.h"

namespace primus {
namespace {

constexpr std::string_view kTeacherKey = "teacher_model_name_or_path";

class DistillationRule final : public LossRule {
 public:
  explicit DistillationRule(DistillationSettings settings) : settings_(std::move(settings)) {}

  std::vector<FrozenModel> frozen_models(const ModelConfig& student) const override {
    return {{.name = "teacher", .model = teacher_of(student), .folder = settings_.folder}};
  }

  void prepare(TrainingSession& session) override {
    engine::Rank& rank = session.rank();
    check_mesh(session);
    ModelInstance& teacher = session.frozen("teacher");
    scorer_.emplace(rank, teacher, scorer_settings(session),
                    TokenScorer::Options{.values = TokenScorer::Values::kHeadInputs});
    if (!teacher.model().last(teacher.model().chunks() - 1)) return;  // another stage has the heads
    turbo::DistillationForm form = settings_.form;
    form.cap = static_cast<float>(session.model().config().logit_cap);
    form.teacher_cap = static_cast<float>(teacher.model().config().logit_cap);
    const Tensor weight = teacher.model().head()->value.slice(0, session.model().head()->value.shape[0]);
    for (std::int64_t i = 0; i < session.settings().step.microbatches; ++i) {
      const Tensor hidden =
          rank.persistent(session.settings().compute, {scorer_->tokens(), teacher.model().config().hidden});
      operands_.push_back({.hidden = hidden, .weight = weight, .form = form});
    }
  }

  void load_weights(TrainingSession& session) override { settings_.load(session, session.frozen("teacher")); }

  void before_step(const BeforeStep& step) override {
    const bool measuring = step.session.rank().measuring();
    // A step with generated answers passes only the microbatches that contain answers.
    const std::int64_t count =
        measuring ? step.session.settings().step.microbatches : std::ssize(step.batches);
    step.session.frozen("teacher").parallel().wait_for_all_values();
    for (std::int64_t i = 0; i < count; ++i) {
      const auto index = static_cast<std::size_t>(i);
      // Ranks without the last part of the teacher only take part in its forward pass.
      const Tensor out = operands_.empty() ? Tensor() : operands_[index].hidden;
      scorer_->score(measuring ? data::BatchView{} : data::BatchView(step.batches[index]), out);
    }
  }

  const engine::Teacher* teacher(std::int64_t microbatch) const override {
    return &operands_[static_cast<std::size_t>(microbatch)];
  }
  void weigh(const TokenLosses&) override {}

 private:
  Error refusal(std::string_view key, std::string what, std::string hint) const {
    return settings_.experiment.error_for(key, std::move(what), std::move(hint));
  }

  // Reads the teacher's architecture. Throws if the student cannot learn its distribution.
  ModelConfig teacher_of(const ModelConfig& student) const {
    ModelConfig teacher = settings_.teacher();
    const std::string name = settings_.folder.string();
    if (teacher.scores) {
      throw refusal(kTeacherKey,
                    fmt::format("the teacher '{}' computes scores, not probabilities of tokens", name),
                    "name a language model");
    }
    if (teacher.vocab < student.vocab) {
      throw refusal(kTeacherKey,
                    fmt::format("the teacher '{}' has {} tokens, but the trained model has {}", name,
                                teacher.vocab, student.vocab),
                    "name a teacher with at least as many tokens, whose first ids have the same meaning");
    }
    return teacher;
  }

  void check_mesh(TrainingSession& session) const {
    const ModelConfig& teacher = session.frozen("teacher").model().config();
    if (session.settings().sharding == engine::Sharding::kParameters && session.rank().mesh().size() > 1) {
      throw refusal(
          "data_parallel_sharding_strategy",
          "stage distill reads the teacher's head during the backward pass, so its parameters cannot be "
          "sharded over data ranks",
          "set data_parallel_sharding_strategy: optim_grads");
    }
    if (session.rank().mesh().shape().tensor > 1 && teacher.vocab != session.model().config().vocab) {
      throw refusal(
          "tensor_model_parallel_size",
          fmt::format("the teacher has {} tokens and the trained model {}, so tensor ranks would hold "
                      "different parts of both vocabularies",
                      teacher.vocab, session.model().config().vocab),
          "set tensor_model_parallel_size: 1");
    }
  }

  const DistillationSettings settings_;
  std::optional<TokenScorer> scorer_;
  std::vector<engine::Teacher> operands_;  // one per microbatch; empty without the last part of the model
};

}  // namespace

DistillationSettings distillation_settings_of(const config::Experiment& experiment) {
  const config::TrainerConfig& c = experiment.trainer;
  const std::string given = c.teacher_model_name_or_path.value_or("");
  if (c.beta && *c.beta > 1) {
    throw experiment.error_for(
        "beta", fmt::format("beta is {}, but stage distill needs a value from 0 to 1", *c.beta),
        "0 learns by KL(teacher || student), 1 by KL(student || teacher)");
  }
  ModelFolder folder;
  try {
    folder = find_model_folder(given);
  } catch (const Error& error) {
    throw experiment.error_for(kTeacherKey, error.what(), error.hint());
  }
  return {.form = {.beta = static_cast<float>(c.beta.value()),
                   .temperature = static_cast<float>(c.temperature),
                   .label_share = static_cast<float>(c.distillation_label_share)},
          .teacher = [folder] { return load_model_config(folder, builtin_families()); },
          .load =
              [folder](TrainingSession& session, ModelInstance& teacher) {
                load_weights(open_weights(folder), teacher.store(), session.rank());
                teacher.parallel().distribute_values();
              },
          .folder = folder.adapters.value_or(folder.path),
          .experiment = experiment};
}

void check_teacher_tokenizer(const config::Experiment& experiment, const Tokenizer& tokenizer) {
  const std::string given = experiment.trainer->teacher_model_name_or_path.value_or("");
  const std::unique_ptr<const Tokenizer> of_teacher = load_own_tokenizer(find_model_folder(given));
  if (make_same_ids(of_teacher->fingerprint(), tokenizer.fingerprint())) return;
  throw experiment.error_for(
      kTeacherKey, fmt::format("the teacher '{}' has another tokenizer than the trained model", given),
      "distillation compares probabilities of tokens, so both models need the same tokens: name a teacher of "
      "the same family");
}

MakeLossRule distillation_rule(const DistillationSettings& settings) {
  return [settings] { return std::make_unique<DistillationRule>(settings); };
}

}  // namespace primus
