// Distillation: fine-tunes on conversations by the probabilities of a teacher. The answers are those of the
// data, or the trained model's own (on-policy distillation).
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/trainer_config.h"
#include "lm/data/on_policy_dataset.h"
#include "lm/train/objectives/conversation_objective.h"
#include "lm/train/objectives/keys/reinforcement_keys.h"
#include "lm/train/objectives/keys/second_model_mesh.h"
#include "lm/train/objectives/rollouts/answer_generator.h"
#include "lm/train/objectives/rollouts/rollouts.h"
#include "lm/train/objectives/rules/distillation_rule.h"
#include "lm/train/objectives/rules/own_answers_rule.h"
#include "lm/train/objectives/sft.h"
#include "lm/train/settings/training_settings.h"
#include "lm/train/step/step_settings.h"

namespace primus {
namespace {

// Throws if the sequences have no room for a prompt with a generated answer.
void check_lengths(const config::Experiment& experiment) {
  const config::TrainerConfig& c = experiment.trainer;
  const std::int64_t prompt = c.max_prompt_length.value_or(1);
  if (prompt + c.max_completion_length <= c.seq_length) return;
  throw experiment.error_for(
      "max_completion_length",
      fmt::format(
          "an answer of {} tokens (max_completion_length) and a prompt of {} do not fit into seq_length "
          "({})",
          c.max_completion_length, prompt, c.seq_length),
      fmt::format("increase seq_length to at least {}, or decrease max_completion_length",
                  prompt + c.max_completion_length));
}

class Distillation final : public ConversationLearning {
 public:
  void prepare(config::Experiment& experiment) const override {
    distillation_settings_of(experiment);
    if (!config::generates_answers(experiment.trainer)) return;
    check_lengths(experiment);
    if (experiment.trainer->distillation_label_share > 0) {
      throw experiment.error_for(
          "distillation_label_share",
          fmt::format("distillation_label_share is {}, but steps in which the trained model generates the "
                      "answers (distillation_on_policy_share) have no labels to learn",
                      experiment.trainer->distillation_label_share),
          "set distillation_label_share: 0, or distillation_on_policy_share: 0");
    }
    if (experiment.trainer->distillation_on_policy_share < 1) return;
    leave_out_evaluation(experiment,
                         "a share below 1 (distillation_on_policy_share) reads the answers of the "
                         "data, and evaluates them");
  }
  void check_tokenizer(const config::Experiment& experiment, const Tokenizer& tokenizer) const override {
    check_teacher_tokenizer(experiment, tokenizer);
  }

  data::Datasets open(const data::SftOptions& options, const Tokenizer& tokenizer) const override {
    return options.own_answers ? data::open_on_policy_datasets(options, tokenizer)
                               : ConversationLearning::open(options, tokenizer);
  }
  data::SftEpochs samples_of_epochs(const data::SftOptions& options, const Tokenizer& tokenizer,
                                    double epochs) const override {
    return options.own_answers ? data::on_policy_samples_of_epochs(options, tokenizer, epochs)
                               : ConversationLearning::samples_of_epochs(options, tokenizer, epochs);
  }

  // Packs the prompts of the first step with answers of max_completion_length tokens.
  std::optional<std::int64_t> filled_microbatches(const data::SftOptions& options, const Tokenizer& tokenizer,
                                                  const StepSettings& step, int data_ranks) const override {
    if (!options.own_answers) return std::nullopt;
    data::SftOptions training = options;
    training.train_samples = std::max<std::int64_t>(1, training.train_samples);
    training.valid_samples = training.test_samples = 0;
    const data::Datasets datasets = data::open_on_policy_datasets(training, tokenizer);
    const data::OnPolicyDataset& data = data::OnPolicyDataset::of(*datasets.train);
    const RolloutRows rows{
        .micro_batch = step.micro_batch, .sequence = step.sequence, .microbatches = step.microbatches};
    return most_filled_microbatches(rows, 0, rows.count(), data_ranks, [&](std::int64_t answer) {
      return std::ssize(data.prompt(answer)) + options.own_answers->max_completion_length - 1;
    });
  }

  MakeLossRule loss_rule(const config::Experiment& experiment) const override {
    const config::TrainerConfig& c = experiment.trainer;
    MakeLossRule rule = distillation_rule(distillation_settings_of(experiment));
    if (!config::generates_answers(c)) return rule;
    return own_answers_rule({.share = c.distillation_on_policy_share,
                             .max_completion_length = c.max_completion_length,
                             .sampling = sampling_settings_of(c),
                             .mask_truncated_completions = c.mask_truncated_completions},
                            std::move(rule));
  }
  void prepare_session(const config::Experiment& experiment, int world,
                       SessionSettings& settings) const override {
    const config::TrainerConfig& c = experiment.trainer;
    const DistillationSettings distillation = distillation_settings_of(experiment);
    check_mesh_of_second_model(experiment, world, settings,
                               fmt::format("teacher '{}'", distillation.folder.string()),
                               distillation.teacher(), settings.step.micro_batch, settings.step.sequence);
    if (!config::generates_answers(c)) return;
    const engine::MeshShape shape = mesh_shape_of(experiment, world);
    reserve_decoder(settings, std::min(c.seq_length, settings.model.max_positions), shape.data(world),
                    generates_together(settings, shape, world));
  }
  void connect(LossRule& rule, const DataRequest& request, const data::Datasets& datasets,
               const data::SftOptions& options) const override {
    if (!options.own_answers) return;
    const data::OnPolicyDataset& data = data::OnPolicyDataset::of(*datasets.train);
    const Tokenizer& tokenizer = request.tokenizer;
    dynamic_cast<OwnAnswersRule&>(rule).connect(
        {.prompt = [&data](std::int64_t record) { return data.prompt(record); },
         .conversation = [&data](std::int64_t record) { return data.conversation(record); },
         .text = [&tokenizer](std::span<const std::int32_t> ids,
                              bool special) { return tokenizer.decode(ids, !special); },
         .stop_ids = data::end_ids_of_answers(options, tokenizer),
         .vocab = tokenizer.vocab_size()});
  }
};

}  // namespace

extern const ObjectiveEntry kStageDistill{
    .stage = {.name = "distill",
              .meaning =
                  "which learns the probabilities that a teacher gives to the answers of conversations",
              .material = config::Material::kConversations,
              .fine_tunes = true,
              .has_teacher = true,
              .default_beta = 0.5},
    .make = [] { return make_fine_tuning(std::make_unique<Distillation>()); }};

}  // namespace primus
