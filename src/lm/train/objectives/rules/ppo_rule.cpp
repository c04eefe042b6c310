#include "lm/train/objectives/rules/ppo_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "lm/model/weights.h"
#include "lm/train/objectives/rollouts/saved_answers.h"
#include "lm/train/objectives/rules/ppo_losses.h"
#include "lm/train/objectives/rules/token_log_probs.h"
#include "lm/train/step/session.h"

namespace primus {
namespace {

constexpr const char *kValueModel = "value_model", *kMetrics = "rollouts.estimate_metrics";
// The metrics of estimates, in the order in which checkpoints store them.
constexpr std::array<std::string_view, 5> kMetricNames = {"kl", "rlhf_reward", "returns/mean", "values/mean",
                                                          "explained_variance"};

// The clipped regression of the value model to the returns.
class ValueRule final : public LossRule {
 public:
  // `losses`: exist from the call of prepare() of the policy's rule.
  explicit ValueRule(std::optional<PpoLosses>& losses) : losses_(losses) {}

  std::vector<std::string> metrics() const override { return PpoLosses::value_metrics(); }
  void weigh(const TokenLosses& tokens) override { losses_->weigh_values(tokens); }

 private:
  std::optional<PpoLosses>& losses_;
};

class PolicyAndValueRule final : public PpoRule {
 public:
  PolicyAndValueRule(const PpoSettings& settings, ReferenceWeights reference, ValueModel value_model)
      : settings_(settings),
        reference_(settings.kl_coef != 0, std::move(reference)),
        value_model_(std::move(value_model)),
        value_rule_(losses_) {}

  std::vector<FrozenModel> frozen_models(const ModelConfig& model) const override {
    return reference_.frozen_models(model);
  }
  std::optional<SecondModel> second_model(const ModelConfig& model) override {
    return SecondModel{.name = kValueModel, .model = value_model_.config(model), .rule = &value_rule_};
  }

  void prepare(TrainingSession& session) override {
    engine::Rank& rank = session.rank();
    sums_ = rank.persistent(DType::kF64, {kSums});
    current_.emplace(session, ScoredModel{.model = session.trained()});
    if (reference_.used()) reference_log_probs_.emplace(session, reference_of(session));
    values_.emplace(rank, session.second(), scorer_settings(session), TokenScorer::Options{});
    value_table_ = rank.persistent(DType::kF32, {values_->tokens()});
    collector_.emplace(session);
    reader_.emplace(rank);
    losses_.emplace(session, settings_);
  }

  void load_weights(TrainingSession& session) override {
    reference_.load_weights(session);
    if (!restored_) value_model_.load(session, session.second());
    session.second().parallel().distribute_values();
  }

  void before_step(const BeforeStep& step) override {
    if (step.session.rank().measuring() || step.batches.front().returns.empty())
      estimate(step.session, step.batches);
    losses_->begin_step(step.session, step.batches);
  }

  std::vector<std::string> metrics() const override { return PpoLosses::policy_metrics(settings_); }
  TokenNeeds needs() const override { return {.statistics = settings_.reports_entropy}; }
  std::vector<std::pair<std::string, double>> host_metrics() const override { return metrics_; }

  void weigh(const TokenLosses& tokens) override { losses_->weigh_policy(tokens); }

  void estimate(TrainingSession& session, std::span<data::Batch> batches) override {
    std::vector<PpoAnswer>& answers = answers_;
    answers.clear();
    std::vector<std::pair<std::size_t, AnswerPlace>> places;  // the microbatch and the place of each answer
    for (std::size_t i = 0; i < batches.size(); ++i) {
      data::Batch& batch = batches[i];
      const std::vector<float> current = current_->compute(batch);
      const std::vector<float> reference =
          reference_log_probs_ ? reference_log_probs_->compute(batch) : std::vector<float>();
      values_->score(batch, value_table_);
      const std::vector<float> values = collector_->collect(value_table_);
      if (session.rank().measuring()) continue;
      for (const AnswerPlace& place : places_of(batch, settings_.max_completion_length)) {
        const auto part = [&](const std::vector<float>& all, std::size_t count) {
          if (all.empty()) return std::vector<double>();
          const auto first = all.begin() + static_cast<std::ptrdiff_t>(place.first);
          return std::vector<double>(first, first + static_cast<std::ptrdiff_t>(count));
        };
        const auto document =
            std::ranges::upper_bound(batch.document_starts, static_cast<std::int32_t>(place.first)) -
            batch.document_starts.begin() - 1;
        answers.push_back(
            {.log_probs = part(current, place.tokens),
             .reference = part(reference, place.tokens),
             .values = part(values, place.values),
             .score = static_cast<double>(batch.document_values[static_cast<std::size_t>(document)])});
        places.emplace_back(i, place);
      }
      batch.old_log_probs = current;
      for (std::vector<float>* const table : {&batch.values, &batch.token_advantages, &batch.returns})
        table->assign(batch.tokens.size(), 0.0F);
    }
    compute(session, answers);
    for (std::size_t a = 0; a < answers.size(); ++a) {
      const auto& [microbatch, place] = places[a];
      data::Batch& batch = batches[microbatch];
      for (std::size_t t = 0; t < place.values; ++t) {
        batch.values[place.first + t] = static_cast<float>(answers[a].values[t]);
        batch.returns[place.first + t] = static_cast<float>(answers[a].returns[t]);
        if (t < place.tokens)
          batch.token_advantages[place.first + t] = static_cast<float>(answers[a].advantages[t]);
      }
    }
  }

  std::span<const PpoAnswer> answers() const override { return answers_; }

  std::vector<TensorSource> state(TrainingSession& session, std::int64_t) override {
    engine::ParameterStore& store = session.second().store();
    std::vector<TensorSource> sources = model_sources(store, *reader_);
    for (TensorSource& source : optimizer_sources(store, *reader_)) sources.push_back(std::move(source));
    for (TensorSource& source : sources) source.name = fmt::format("{}.{}", kValueModel, source.name);
    sources.push_back(saved_metrics(session.rank().mesh().rank() == 0));
    return sources;
  }

  std::string restore(TrainingSession& session, const CheckpointReader& checkpoint) override {
    const std::string prefix = fmt::format("{}.", kValueModel);
    const auto is_saved = [&](const TensorRecord& record) { return record.name.starts_with(prefix); };
    if (std::ranges::none_of(checkpoint.manifest().tensors, is_saved)) {
      return fmt::format("{} has no value model: the value model starts from its first weights again",
                         checkpoint.folder().string());
    }
    load_second_model(checkpoint, session.second().store(), session.rank(), kValueModel);
    restored_ = true;
    // Checkpoints of older versions have no metrics.
    const auto saved = read_table<double>(checkpoint, kMetrics, DType::kF64, 1, std::ssize(kMetricNames));
    metrics_.clear();
    for (std::size_t m = 0; saved && m < kMetricNames.size(); ++m)
      if (!std::isnan(saved->values[m])) metrics_.emplace_back(kMetricNames[m], saved->values[m]);
    return {};
  }

 private:
  static constexpr std::int64_t kSums = 8;

  // Returns the metrics of the newest estimates for a checkpoint: the next steps may learn from the same
  // answers. A metric that does not exist is NaN. `writes`: whether this rank writes them.
  TensorSource saved_metrics(bool writes) const {
    constexpr std::int64_t kOnly = 0;
    SavedTable<double> table(1, std::ssize(kMetricNames));
    std::ranges::fill(table.values, std::numeric_limits<double>::quiet_NaN());
    for (const auto& [name, value] : metrics_)
      table.values[static_cast<std::size_t>(std::ranges::find(kMetricNames, name) - kMetricNames.begin())] =
          value;
    if (!writes) table.values.clear();
    return saved_tensor(kMetrics, DType::kF64, 1, std::move(table), std::span(&kOnly, writes ? 1U : 0U));
  }

  // Sums `numbers` over the data ranks, in place.
  void add_up(TrainingSession& session, std::array<double, kSums>& numbers) {
    engine::Rank& rank = session.rank();
    if (rank.mesh().data_ranks() == 1) return;
    if (!rank.measuring()) rank.compute().copy_to_device(sums_.data, numbers.data(), sums_.bytes());
    session.parallel().sum_over_data(sums_);
    if (rank.measuring()) return;
    rank.compute().copy_to_host(numbers.data(), sums_.data, sums_.bytes());
    rank.compute().synchronize();
  }

  // Mean and unbiased variance over the answers of all ranks.
  struct Moments {
    double mean = 0, variance = 0;
  };
  // `of(answer)`: the numbers of one answer that count.
  template <class Of>
  Moments moments(TrainingSession& session, std::span<const PpoAnswer> answers, const Of& of) {
    std::array<double, kSums> sums{};
    for (const PpoAnswer& answer : answers) {
      for (const double x : of(answer)) {
        sums[0] += 1;
        sums[1] += x;
      }
    }
    add_up(session, sums);
    const double count = std::max(sums[0], 1.0);
    Moments out{.mean = sums[1] / count};
    sums = {};
    for (const PpoAnswer& answer : answers)
      for (const double x : of(answer)) sums[0] += (x - out.mean) * (x - out.mean);
    add_up(session, sums);
    out.variance = sums[0] / std::max(count - 1, 1.0);
    return out;
  }

  // Computes rewards, advantages and returns of the answers, and the metrics.
  void compute(TrainingSession& session, std::span<PpoAnswer> answers) {
    for (PpoAnswer& answer : answers) set_rewards(settings_, answer);
    if (settings_.whiten_rewards) {
      const Moments all = moments(session, answers, [](const PpoAnswer& a) { return std::span(a.rewards); });
      for (PpoAnswer& answer : answers)
        for (double& reward : answer.rewards) reward = whitened(reward, all) + all.mean;
    }
    for (PpoAnswer& answer : answers) set_advantages(settings_, answer);
    const auto returns = moments(session, answers, [](const PpoAnswer& a) { return std::span(a.returns); });
    const auto values = moments(session, answers, [](const PpoAnswer& a) { return std::span(a.values); });
    const auto errors = moments(session, answers, [](const PpoAnswer& a) { return std::span(a.advantages); });
    const auto of_tokens = [](const PpoAnswer& a) {
      return std::span(a.advantages).first(a.log_probs.size());
    };
    const Moments all = moments(session, answers, of_tokens);
    for (PpoAnswer& answer : answers)
      for (double& advantage : answer.advantages) advantage = whitened(advantage, all);
    std::array<double, kSums> sums{};
    for (const PpoAnswer& answer : answers) {
      sums[0] += 1;
      for (const double d : divergences_of(settings_, answer)) sums[1] += d;
      sums[2] += answer.score;
    }
    add_up(session, sums);
    if (session.rank().measuring()) return;
    const double count = std::max(sums[0], 1.0);
    metrics_.clear();
    if (reference_.used()) metrics_.emplace_back("kl", sums[1] / count);
    metrics_.emplace_back("rlhf_reward", (sums[2] - settings_.kl_coef * sums[1]) / count);
    metrics_.emplace_back("returns/mean", returns.mean);
    metrics_.emplace_back("values/mean", values.mean);
    // The error of a value is the return minus the value: the advantage without whitening.
    if (returns.variance > 0)
      metrics_.emplace_back("explained_variance", 1 - errors.variance / returns.variance);
  }

  static double whitened(double x, const Moments& all) {
    return (x - all.mean) / std::sqrt(all.variance + 1e-8);
  }

  const PpoSettings settings_;
  ReferenceModel reference_;
  const ValueModel value_model_;
  std::optional<PpoLosses> losses_;
  ValueRule value_rule_;
  Tensor sums_;  // [kSums] fp64
  std::optional<TokenLogProbs> current_, reference_log_probs_;
  std::optional<TokenScorer> values_;
  Tensor value_table_;  // [tokens] fp32
  std::optional<TokenCollector> collector_;
  std::optional<DeviceReader> reader_;
  std::vector<PpoAnswer> answers_;
  bool restored_ = false;  // whether a checkpoint had the value model
  std::vector<std::pair<std::string, double>> metrics_;
};

}  // namespace

ModelConfig value_model_of(ModelConfig policy) {
  policy.lora = {};
  policy.scores = true;
  policy.logit_divisor = 1;
  return policy;
}

MakeLossRule ppo_rule(const PpoSettings& settings, ReferenceWeights reference, ValueModel value_model) {
  check_ppo(settings);
  PRIMUS_CHECK("ppo_rule", value_model.config && value_model.load);
  return [settings, load = std::move(reference), value = std::move(value_model)] {
    return std::make_unique<PolicyAndValueRule>(settings, load, value);
  };
}

}  // namespace primus
