// Supervised fine-tuning: learns the answers in conversations.
#include "lm/train/objectives/sft.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/error.h"
#include "config/trainer_config.h"
#include "lm/train/objectives/conversation_objective.h"
#include "lm/train/objectives/keys/sft_plan.h"
#include "lm/train/objectives/rules/dft_rule.h"
#include "lm/train/settings/training_settings.h"

namespace primus {
namespace {

// Keys that affect how conversations are written, packed and held out, and therefore the training data.
constexpr std::array<std::string_view, 13> kConversationKeys = {"sft_conversation_format",
                                                                "distillation_on_policy_share",
                                                                "max_completion_length",
                                                                "max_prompt_length",
                                                                "enable_packed_sequences",
                                                                "use_packed_attention",
                                                                "sft_bridge_compat_inline_bos",
                                                                "sft_dataset_split",
                                                                "dataloader_type",
                                                                "seq_length",
                                                                "split",
                                                                "eval_iters",
                                                                "seed"};

class FineTuning final : public Objective {
 public:
  explicit FineTuning(std::unique_ptr<const ConversationLearning> learning)
      : learning_(std::move(learning)) {}

  ObjectivePlan plan(config::Experiment experiment, const FamilyRegistry& families, int world) override {
    learning_->prepare(experiment);
    SftPlan plan =
        plan_fine_tuning(std::move(experiment), families, world,
                         [this](const data::SftOptions& options, const Tokenizer& tokenizer, double epochs) {
                           return learning_->samples_of_epochs(options, tokenizer, epochs);
                         });
    units_ = std::move(plan.units);
    return ObjectivePlan{std::move(plan)};
  }

  bool trains_scores() const override { return learning_->trains_scores(); }

  MakeLossRule loss_rule(const config::Experiment& experiment) const override {
    return learning_->loss_rule(experiment);
  }
  void prepare_session(const config::Experiment& experiment, int world,
                       SessionSettings& settings) const override {
    learning_->prepare_session(experiment, world, settings);
  }
  void connect(LossRule& rule, const DataRequest& request, const data::Datasets& datasets) const override {
    learning_->connect(rule, request, datasets, options_of(request));
  }

  std::optional<std::int64_t> planned_samples(const DataRequest& request, double epochs) const override {
    // A dry run needs no data. Data that exist but cannot be read are an error, as in the run itself.
    if (!has_conversations(request.experiment)) return std::nullopt;
    return epochs_of(request, epochs).samples;
  }

  std::optional<std::int64_t> filled_microbatches(const DataRequest& request, const StepSettings& step,
                                                  int data_ranks) override {
    if (!has_conversations(request.experiment)) return std::nullopt;  // a dry run needs no data
    std::optional<std::int64_t> filled;
    at_key(request.experiment, "sft_dataset_name", [&] {
      filled = learning_->filled_microbatches(options_of(request), request.tokenizer, step, data_ranks);
    });
    return filled;
  }

  void find_missing(const config::Experiment& experiment, std::vector<MissingInput>& missing) const override {
    find_missing_conversations(experiment, missing);
  }

  // Conversations repeat without end, so there is nothing to check.
  void check_samples(const config::Experiment&) const override {}

  // Returns the length of the prompt, which is a complete question.
  std::int64_t prompt_tokens(const config::TrainerConfig& trainer) const override {
    return std::max<std::int64_t>(trainer.seq_length, 256);
  }

  // Makes generation stop at the token with which the model learns to end its turns.
  void teach(const config::Experiment& experiment, const Tokenizer& tokenizer,
             ModelConfig& model) const override {
    teach_end_of_turn(data::choose_style(experiment.trainer->sft_conversation_format, tokenizer).style,
                      tokenizer, model);
  }

  data::Datasets open(const DataRequest& request) override {
    const data::SftOptions options = options_of(request);
    learning_->check_tokenizer(request.experiment, request.tokenizer);
    data::Datasets datasets;
    at_key(request.experiment, "sft_conversation_format",
           [&] { data::conversation_writer(options, request.tokenizer); });
    at_key(request.experiment, "sft_dataset_name",
           [&] { datasets = learning_->open(options, request.tokenizer); });
    return datasets;
  }
  bool opens_at_once() const override { return true; }  // no cache has to be built first

  std::int64_t samples_of_epochs(const DataRequest& request, double epochs) override {
    data::SftEpochs all = epochs_of(request, epochs);
    units_ = std::move(all.units);
    return all.samples;
  }
  bool depends_on_ranks(const config::TrainerConfig&) const override { return false; }
  bool documents_end_by_token() const override { return false; }

  // Returns the first question, up to the beginning of its answer.
  std::vector<std::int32_t> sample_prompt(const data::Datasets& datasets,
                                          const DataRequest& request) const override {
    const auto sequence = static_cast<std::size_t>(request.experiment.trainer->seq_length);
    const data::Dataset& from = datasets.valid ? *datasets.valid : *datasets.train;
    std::vector<std::int32_t> tokens(sequence + 1);
    std::vector<float> mask(sequence);
    from.sample(0, tokens, mask);
    tokens.resize(static_cast<std::size_t>(std::ranges::find(mask, 1.0F) - mask.begin()) + 1);
    return tokens;
  }

  std::string_view validation_hint() const override { return "give a folder that also has validation.jsonl"; }

  std::string data_name(const config::TrainerConfig& trainer) const override {
    return trainer.sft_dataset_name.value_or("");
  }
  // The order of conversations does not depend on the number of epochs.
  bool keeps_order(std::string_view key) const override { return key.starts_with("train_"); }

  void refuse_changed_data(const ChangedData& changed) const override {
    const config::Experiment& e = changed.experiment;
    std::vector<SettingChange> changes;
    for (const SettingChange& change : changed_settings(changed.state.experiment, config::to_yaml(e))) {
      const bool known = std::ranges::find(kConversationKeys, change.key) != kConversationKeys.end();
      if (!known || changed.before.name != changed.now.name) continue;
      // Skips a change between two numbers of evaluation batches: conversations are held out as before.
      const bool evaluated = !change.before.empty() && change.before != "0";
      if (change.key == "eval_iters" && e.trainer->eval_iters != 0 && evaluated) continue;
      changes.push_back(change);
    }
    if (!changes.empty()) {
      std::string others;
      for (const SettingChange& change : std::span(changes).subspan(1))
        others += fmt::format("{}: {}, ", change.key, change.before.empty() ? "unset" : change.before);
      changed.refuse_setting(
          changes.front(),
          others + "which changes how conversations are packed, or which ones are held out for validation");
    }
    changed.refuse("sft_dataset_name", fmt::format("set of {}", learning_->noun()));
  }

  void finish_model_files(const DataRequest& request, const ModelConfig& model,
                          std::vector<Snapshot::Blob>& files) const override {
    put_stop_ids(request.experiment, model, files);
    put_chat_template(data::conversation_writer(options_of(request), request.tokenizer).style(),
                      request.tokenizer, files);
  }

 private:
  data::SftOptions options_of(const DataRequest& request) const {
    data::SftOptions options = sft_options_of(request.experiment, request.tokenizer);
    options.progress = request.progress;
    options.units = units_;
    return options;
  }
  data::SftEpochs epochs_of(const DataRequest& request, double epochs) const {
    const data::SftOptions options = options_of(request);
    at_key(request.experiment, "sft_conversation_format",
           [&] { data::conversation_writer(options, request.tokenizer); });
    data::SftEpochs all;
    at_key(request.experiment, "sft_dataset_name",
           [&] { all = learning_->samples_of_epochs(options, request.tokenizer, epochs); });
    return all;
  }

  const std::unique_ptr<const ConversationLearning> learning_;
  // The training data, once they have been read.
  std::shared_ptr<const data::TrainingUnits> units_;
};

}  // namespace

std::unique_ptr<Objective> make_fine_tuning(std::unique_ptr<const ConversationLearning> learning) {
  return std::make_unique<FineTuning>(std::move(learning));
}

namespace {

// Learns the answers of conversations.
class AnswerLearning final : public ConversationLearning {
 public:
  void prepare(config::Experiment& experiment) const override { is_dft(experiment); }
  MakeLossRule loss_rule(const config::Experiment& experiment) const override {
    return is_dft(experiment) ? dft_rule() : MakeLossRule();
  }

 private:
  // Returns whether loss_type is dft. Throws Error(kInvalid) for losses of other stages.
  static bool is_dft(const config::Experiment& experiment) {
    const std::vector<std::string>& types = experiment.trainer->loss_type;
    if (types.empty() || types == std::vector<std::string>{"nll"}) return false;
    if (types == std::vector<std::string>{"dft"}) return true;
    throw experiment.error_for("loss_type", fmt::format("stage sft has no loss '{}'", fmt::join(types, ", ")),
                               "choose nll or dft");
  }
};

}  // namespace

extern const ObjectiveEntry kStageSft{
    .stage = {.name = "sft",
              .meaning = "which learns the answers of conversations (docs/posttrain.md)",
              .material = config::Material::kConversations,
              .fine_tunes = true},
    .make = [] { return make_fine_tuning(std::make_unique<AnswerLearning>()); }};

}  // namespace primus
