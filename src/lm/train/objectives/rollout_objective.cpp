#include "lm/train/objectives/rollout_objective.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "config/trainer_config.h"
#include "lm/data/chat_template.h"
#include "lm/data/prompt_dataset.h"
#include "lm/reward/reward.h"
#include "lm/train/forecast/fit_choice.h"
#include "lm/train/objectives/conversation_objective.h"
#include "lm/train/objectives/keys/ppo_keys.h"
#include "lm/train/objectives/keys/reinforcement_keys.h"
#include "lm/train/objectives/keys/reward_model_keys.h"
#include "lm/train/objectives/rollouts/answer_generator.h"
#include "lm/train/objectives/rollouts/rollouts.h"
#include "lm/train/objectives/rules/policy_rule.h"
#include "lm/train/objectives/rules/rollout_rule.h"
#include "lm/train/settings/training_settings.h"

namespace primus {
namespace {

// Keys that affect which prompts are read, and in which order.
constexpr std::array<std::string_view, 10> kPromptKeys = {"sft_conversation_format", "tools",
                                                          "num_generations",         "num_iterations",
                                                          "num_mini_batches",        "max_prompt_length",
                                                          "max_completion_length",   "seq_length",
                                                          "dataloader_type",         "seed"};

// Runs `check`. Adds the position of a key to its error: of the key with which the message begins, or else of
// the first of `keys`.
void check_at_keys(const config::Experiment& experiment, std::span<const std::string_view> keys,
                   const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    const auto named = std::ranges::find_if(
        keys, [&](std::string_view key) { return std::string_view(error.what()).starts_with(key); });
    throw experiment.error_for(named == keys.end() ? keys.front() : *named, error.what(), error.hint());
  }
}

// Checks the settings of losses and advantages. An error has the position of the offending key.
void check_settings(const config::Experiment& experiment, PolicyMethod method) {
  constexpr std::array<std::string_view, 10> kPolicyKeys = {"loss_type",    "beta",
                                                            "entropy_coef", "top_entropy_quantile",
                                                            "epsilon_high", "epsilon",
                                                            "delta",        "importance_sampling_level",
                                                            "temperature",  "off_policy_mask_threshold"};
  constexpr std::array<std::string_view, 5> kAdvantageKeys = {"num_generations", "reward_weights",
                                                              "scale_rewards", "multi_objective_aggregation",
                                                              "reward_clip_range"};
  if (method == PolicyMethod::kPpo) {
    constexpr std::array<std::string_view, 7> kPpoKeys = {
        "beta", "gamma", "lam", "cliprange_value", "epsilon", "vf_coef", "kl_estimator"};
    check_at_keys(experiment, kPpoKeys, [&] { check_ppo(ppo_settings_of(experiment)); });
  } else {
    const PolicySettings policy = policy_settings_of(experiment, method);
    check_at_keys(experiment, kPolicyKeys, [&] { check_policy(policy); });
  }
  const AdvantageSettings advantages = advantage_settings_of(experiment, method);
  check_at_keys(experiment, kAdvantageKeys, [&] { check_advantages(advantages); });
}

// Creates the reward functions. An error has the position of the key `reward`.
std::vector<std::unique_ptr<RewardFunction>> rewards_of(const config::Experiment& experiment) {
  std::vector<std::unique_ptr<RewardFunction>> rewards;
  if (experiment.trainer->reward.empty()) return rewards;  // the environment gives the reward
  check_at_keys(experiment, std::array<std::string_view, 1>{"reward"},
                [&] { rewards = make_rewards(reward_settings_of(experiment)); });
  return rewards;
}

// Creates the reward functions and the one of the environment.
std::vector<std::unique_ptr<RewardFunction>> all_rewards_of(const config::Experiment& experiment) {
  std::vector<std::unique_ptr<RewardFunction>> rewards = rewards_of(experiment);
  if (experiment.trainer->environment) rewards.push_back(make_episode_reward("environment"));
  return rewards;
}

// Returns which answers are generated before their steps.
RolloutSettings::Ahead ahead_of(const config::TrainerConfig& c) {
  // Corrections compare the training pass with the sampler, so the ratio must not.
  const bool corrects = config::stage_of(c).chooses_policy_loss && c.sampler_correction != "none";
  return {.batches = c.max_staleness / c.num_iterations, .sampled_is_old = !corrects};
}

// Returns the environment; null without one. An error has the position of the key `environment`.
std::shared_ptr<Environment> environment_of(const config::Experiment& experiment) {
  std::shared_ptr<Environment> environment;
  if (!experiment.trainer->environment) return environment;
  check_at_keys(experiment, std::array<std::string_view, 1>{"environment"}, [&] {
    environment = std::make_shared<Environment>(environment_settings_of(experiment.trainer));
  });
  return environment;
}

bool has_column(const data::Prompts& prompts, const std::string& column) {
  if (prompts.columns().contains(column)) return true;
  // columns() lacks the keys that are part of a prompt, so the complete records are searched for them.
  for (std::int64_t i = 0; i < prompts.size(); ++i)
    if (prompts.record(i).contains(column)) return true;
  return false;
}

// Refuses reward functions that read a column that no record has.
void check_columns(const config::Experiment& experiment, const data::Prompts& prompts) {
  std::vector<std::string_view> names;
  for (const auto& [name, count] : prompts.columns()) names.push_back(name);
  for (const std::string& text : experiment.trainer->reward) {
    const std::optional<std::string> column = column_of(text);
    if (column && has_column(prompts, *column)) continue;
    at_key(experiment, "reward", [&] { require_column(text, names); });
  }
}

class RolloutLearning final : public Objective {
 public:
  explicit RolloutLearning(PolicyMethod method) : method_(method) {}

  ObjectivePlan plan(config::Experiment experiment, const FamilyRegistry&, int world) override {
    check_settings(experiment, method_);
    if (method_ == PolicyMethod::kPpo) check_ppo_run(experiment, world);
    if (!experiment.trainer->reward.empty()) rewards_of(experiment);
    environment_of(experiment);
    check_reward_models(experiment);
    check_reference_adapters(experiment);
    tools_of(experiment);
    leave_out_evaluation(experiment, "the metrics of training show the rewards");
    ObjectivePlan plan;
    if (const auto choice = choose_microbatch(experiment, world)) {
      set_chosen_microbatch(experiment, choice->rows);
      plan.facts.push_back(choice->why);
    }
    plan.experiment = std::move(experiment);
    return plan;
  }

  std::optional<std::int64_t> planned_samples(const DataRequest& request, double epochs) const override {
    if (!has_conversations(request.experiment)) return std::nullopt;  // a dry run needs no data
    const data::PromptEpochs all = epochs_of(request, epochs);
    check_columns(request.experiment, *all.prompts);
    return all.samples;
  }
  // Packs the prompts of the first step with answers of max_completion_length tokens.
  std::optional<std::int64_t> filled_microbatches(const DataRequest& request, const StepSettings& step,
                                                  int data_ranks) override {
    if (!has_conversations(request.experiment)) return std::nullopt;  // a dry run needs no data
    prompts_ = epochs_of(request, 1).prompts;
    check_columns(request.experiment, *prompts_);
    const config::TrainerConfig& c = request.experiment.trainer;
    const std::shared_ptr<const data::EpochOrder> order = data::prompt_order(*prompts_, prompt_options_of(c));
    const RolloutRows rows{
        .micro_batch = step.micro_batch, .sequence = step.sequence, .microbatches = step.microbatches};
    return most_filled_microbatches(rows, 0, rows.count(), data_ranks, [&](std::int64_t answer) {
      const auto prompt = static_cast<std::int64_t>(order->at(answer / c.num_generations));
      const std::int64_t tokens = std::ssize(prompts_->prompt_ids(prompt)) + c.max_completion_length - 1;
      return std::min(tokens, rows.sequence);
    });
  }
  void find_missing(const config::Experiment& experiment, std::vector<MissingInput>& missing) const override {
    find_missing_conversations(experiment, missing);
  }
  // Prompts repeat without end, so there is nothing to check.
  void check_samples(const config::Experiment&) const override {}
  std::int64_t prompt_tokens(const config::TrainerConfig& trainer) const override {
    return trainer.max_prompt_length.value_or(trainer.seq_length - trainer.max_completion_length);
  }
  // Makes generation stop at the token that ends a turn in the format of the prompts.
  void teach(const config::Experiment& experiment, const Tokenizer& tokenizer,
             ModelConfig& model) const override {
    const auto chosen = data::choose_prompt_style(experiment.trainer->sft_conversation_format, tokenizer);
    if (chosen) teach_end_of_turn(chosen->style, tokenizer, model);
  }

  data::Datasets open(const DataRequest& request) override {
    data::Datasets datasets;
    at_data(request, [&](const data::PromptOptions& options) {
      datasets = data::open_prompt_dataset(options, request.tokenizer);
    });
    return datasets;
  }
  bool opens_at_once() const override { return true; }
  std::int64_t samples_of_epochs(const DataRequest& request, double epochs) override {
    data::PromptEpochs all = epochs_of(request, epochs);
    prompts_ = std::move(all.prompts);
    return all.samples;
  }
  bool depends_on_ranks(const config::TrainerConfig&) const override { return false; }
  bool documents_end_by_token() const override { return false; }
  std::vector<std::int32_t> sample_prompt(const data::Datasets& datasets, const DataRequest&) const override {
    const auto ids = data::PromptDataset::of(*datasets.train).prompts()->prompt_ids(0);
    return {ids.begin(), ids.end()};
  }
  std::string_view validation_hint() const override {
    return "set eval_iters: 0, because this stage evaluates nothing";
  }

  std::string data_name(const config::TrainerConfig& trainer) const override {
    return trainer.sft_dataset_name.value_or("");
  }
  // The order of prompts does not depend on the length of the run.
  bool keeps_order(std::string_view key) const override { return key.starts_with("train_"); }
  void refuse_changed_data(const ChangedData& changed) const override {
    // Other settings of the prompts would not explain another name of the data.
    if (changed.before.name != changed.now.name) changed.refuse("sft_dataset_name", "set of prompts");
    for (const SettingChange& change :
         changed_settings(changed.state.experiment, config::to_yaml(changed.experiment))) {
      if (std::ranges::find(kPromptKeys, change.key) != kPromptKeys.end())
        changed.refuse_setting(change, "which changes which prompts are read, or their order");
    }
    changed.refuse("sft_dataset_name", "set of prompts");
  }
  void finish_model_files(const DataRequest& request, const ModelConfig& model,
                          std::vector<Snapshot::Blob>& files) const override {
    put_stop_ids(request.experiment, model, files);
    const auto chosen =
        data::choose_prompt_style(request.experiment.trainer->sft_conversation_format, request.tokenizer);
    if (chosen) put_chat_template(chosen->style, request.tokenizer, files);
  }

  MakeLossRule loss_rule(const config::Experiment& experiment) const override {
    const config::TrainerConfig& c = experiment.trainer;
    const AdvantageSettings advantages = advantage_settings_of(experiment, method_);
    SamplingSettings sampling = sampling_settings_of(c);
    sampling.temperature = 1;  // prepare_session() divides the logits by the temperature
    RolloutSettings settings{
        .max_completion_length = c.max_completion_length,
        .sampling = sampling,
        .mask_truncated_completions = method_ != PolicyMethod::kPpo && c.mask_truncated_completions,
        .functions = std::ssize(c.reward) + (c.environment ? 1 : 0),
        .iterations = c.num_iterations,
        .num_generations = c.num_generations,
        .sampling_attempts =
            method_ == PolicyMethod::kGrpo && c.dynamic_sampling ? c.dynamic_sampling_max_batches : 0,
        .divergences = advantages.leave_one_out && advantages.beta != 0,
        .ahead = ahead_of(c),
        .max_turns = c.environment ? c.max_turns : 0,
        .advantages =
            [advantages](std::span<const std::optional<double>> rewards, std::int64_t functions,
                         std::span<const double> divergences) {
              return compute_advantages(advantages, rewards, functions, divergences);
            },
        .reward_models = reward_models_of(experiment)};
    if (method_ == PolicyMethod::kPpo) {
      settings.estimate = [](LossRule& inner, TrainingSession& session, std::span<data::Batch> batches) {
        dynamic_cast<PpoRule&>(inner).estimate(session, batches);
      };
      settings.missing_eos_penalty = c.missing_eos_penalty.value_or(0);
      settings.parts = c.num_mini_batches;
      return rollout_rule(settings, ppo_rule_of(experiment));
    }
    return rollout_rule(
        settings, policy_rule(policy_settings_of(experiment, method_), reference_weights_of(experiment)));
  }
  void prepare_session(const config::Experiment& experiment, int world,
                       SessionSettings& settings) const override {
    const config::TrainerConfig& c = experiment.trainer;
    check_at_keys(experiment, std::array<std::string_view, 1>{"temperature"},
                  [&] { settings.model = with_temperature(settings.model, c.temperature); });
    if (method_ == PolicyMethod::kPpo) {
      check_ppo_model(experiment, settings.model);
      check_ppo_mesh(experiment, world, settings);
    }
    check_reward_meshes(experiment, world, settings);
    const engine::MeshShape shape = mesh_shape_of(experiment, world);
    reserve_decoder(settings, std::min(c.seq_length, settings.model.max_positions), shape.data(world),
                    generates_together(settings, shape, world));
  }
  void connect(LossRule& rule, const DataRequest& request, const data::Datasets& datasets) const override {
    const std::shared_ptr<const data::Prompts> prompts = data::PromptDataset::of(*datasets.train).prompts();
    check_columns(request.experiment, *prompts);
    std::vector<std::unique_ptr<RewardFunction>> rewards = all_rewards_of(request.experiment);
    // Only now, because a dry run may be on another machine.
    at_key(request.experiment, "reward", [&] {
      for (const auto& function : rewards) function->check();
    });
    const Tokenizer* const tokenizer = &request.tokenizer;
    RolloutSource source{
        .prompt = [prompts](std::int64_t record) { return prompts->prompt_ids(record); },
        .prompt_text = [prompts](std::int64_t record) { return prompts->prompt_text(record); },
        .record = [prompts](std::int64_t record) { return prompts->record(record); },
        .prompt_at = [order = data::prompt_order(*prompts, prompt_options_of(request.experiment.trainer))](
                         std::int64_t number) { return static_cast<std::int64_t>(order->at(number)); },
        .text = [tokenizer](std::span<const std::int32_t> ids) { return tokenizer->decode(ids); },
        .rewards = std::move(rewards),
        .make_rewards = [experiment = request.experiment] { return all_rewards_of(experiment); },
        .last_step = request.experiment.trainer->train_minutes ? 0 : request.experiment.trainer->train_iters,
        .model_tokens = reward_tokens_of(request, prompts),
        .stop_ids = prompts->end_ids(),
        .vocab = tokenizer->vocab_size(),
        .warn = request.warn};
    if (const std::shared_ptr<Environment> environment = environment_of(request.experiment)) {
      source.episodes = {
          .environment = environment,
          .conversation = [prompts](std::int64_t record) { return prompts->conversation(record); },
          .record = source.record,
          .continuation = [prompts](
                              const data::Conversation& conversation,
                              std::size_t answer) { return prompts->continuation(conversation, answer); },
          .text = [tokenizer](std::span<const std::int32_t> ids) { return tokenizer->decode(ids, false); }};
    }
    dynamic_cast<RolloutRule&>(rule).connect(std::move(source));
  }

 private:
  data::PromptEpochs epochs_of(const DataRequest& request, double epochs) const {
    data::PromptEpochs all;
    at_data(request, [&](const data::PromptOptions& options) {
      all = data::prompt_samples_of_epochs(options, request.tokenizer, epochs);
    });
    return all;
  }
  // Runs `work` with the options of the data. If an error has no position in a file, adds the position of the
  // key that names the data or their format.
  void at_data(const DataRequest& request,
               const std::function<void(const data::PromptOptions&)>& work) const {
    data::PromptOptions options = prompt_options_of(request.experiment.trainer);
    options.progress = request.progress;
    options.prompts = prompts_;
    options.tools = tools_of(request.experiment);
    at_key(request.experiment, "sft_conversation_format",
           [&] { data::choose_prompt_style(options.format, request.tokenizer); });
    at_key(request.experiment, "sft_dataset_name", [&] { work(options); });
  }

  const PolicyMethod method_;
  std::shared_ptr<const data::Prompts> prompts_;  // the prompts, once they have been read
};

}  // namespace

std::unique_ptr<Objective> make_rollout_objective(PolicyMethod method) {
  return std::make_unique<RolloutLearning>(method);
}

}  // namespace primus
