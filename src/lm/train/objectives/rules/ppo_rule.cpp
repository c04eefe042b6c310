#include "lm/train/objectives/rules/ppo_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "lm/model/weights.h"
#include "lm/train/objectives/rules/held_tokens.h"
#include "lm/train/objectives/rules/token_log_probs.h"
#include "lm/train/step/session.h"

namespace primus {
namespace {

using data::DocumentRole;

constexpr const char* kValueModel = "value_model";

// The tokens of an answer in a microbatch: labels [first, first + tokens), and values
// [first, first + values), which may have one more entry.
struct AnswerPlace {
  std::size_t first = 0, tokens = 0, values = 0;
};

std::vector<AnswerPlace> places_of(const data::BatchView& batch, std::int64_t max_completion_length) {
  std::vector<AnswerPlace> places;
  for (std::size_t d = 0; d < batch.document_roles.size(); ++d) {
    if (batch.document_roles[d] != DocumentRole::kAnswer) continue;
    const auto begin = static_cast<std::size_t>(batch.document_starts[d]);
    const auto end = static_cast<std::size_t>(batch.document_starts[d + 1]);
    AnswerPlace place{.first = begin};
    while (place.first < end && batch.loss_mask[place.first] == 0) ++place.first;
    while (place.first + place.tokens < end && batch.loss_mask[place.first + place.tokens] != 0)
      ++place.tokens;
    if (place.tokens == 0) continue;  // an answer without a reward
    const bool follows =
        place.first + place.tokens < end && std::cmp_less(place.tokens, max_completion_length);
    place.values = place.tokens + (follows ? 1 : 0);
    places.push_back(place);
  }
  return places;
}

// The host tables with which the losses of a microbatch are computed.
struct HostTables {
  std::vector<AnswerPlace> places;
  std::vector<float> old_log_probs, values, advantages, returns;  // [tokens]
};

// The tables of a step, which both rules read. They have all tokens of a microbatch. With context
// parallelism, a rank computes the losses of the tokens that it holds.
struct StepTables {
  std::vector<HostTables> microbatches;
  double tokens = 1, values = 1;  // numbers of answer tokens and of values in the step, on all ranks
  std::optional<HeldTokens> held;
  std::vector<float> is_held;  // [tokens]: 1 for the tokens that this rank holds, otherwise 0
};

// Copies per-token tensors to the host, and writes weights and metrics back. A measuring rank skips the work.
class HostWork {
 public:
  HostWork(const TokenLosses& tokens, const StepTables& tables) : tokens_(tokens), tables_(tables) {}
  // Returns a table of all tokens from the values of the tokens that this rank holds; the others are 0.
  std::vector<float> read_tokens(const Tensor& from) const {
    std::vector<float> all(tables_.is_held.size(), 0.0F);
    tables_.held->scatter(read(from), all);
    return all;
  }
  bool holds(std::size_t token) const { return tables_.is_held[token] != 0; }
  // Writes the weights of the losses, given for all tokens, and adds to the metrics.
  void write(const std::vector<float>& weights, std::span<const double> metrics) const {
    std::vector<float> sums = read(tokens_.metrics);
    PRIMUS_CHECK("PpoRule::weigh", sums.size() == metrics.size());
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[i] = static_cast<float>(static_cast<double>(sums[i]) + metrics[i]);
    const std::vector<float> held = tables_.held->select(weights);
    Stream& stream = tokens_.rank.compute();
    stream.copy_to_device(tokens_.weights.data, held.data(), tokens_.weights.bytes());
    stream.copy_to_device(tokens_.metrics.data, sums.data(), tokens_.metrics.bytes());
    stream.synchronize();  // waits, because the host vectors end with the call
  }

 private:
  std::vector<float> read(const Tensor& from) const {
    std::vector<float> values(static_cast<std::size_t>(from.elements()));
    if (values.empty()) return values;
    Stream& stream = tokens_.rank.compute();
    stream.copy_to_host(values.data(), from.data, from.bytes());
    stream.synchronize();
    return values;
  }

  const TokenLosses& tokens_;
  const StepTables& tables_;
};

// The clipped regression of the value model to the returns.
class ValueRule final : public LossRule {
 public:
  ValueRule(const PpoSettings& settings, const StepTables& tables) : settings_(settings), tables_(tables) {}

  std::vector<std::string> metrics() const override { return {"loss", "value_loss", "value_clip_ratio"}; }

  void weigh(const TokenLosses& tokens) override {
    if (tokens.rank.measuring()) return;
    const HostWork host(tokens, tables_);
    const std::vector<float> scores = host.read_tokens(tokens.losses);
    std::vector<float> weights(scores.size(), 0.0F);
    const HostTables& tables = tables_.microbatches[static_cast<std::size_t>(tokens.microbatch)];
    double loss = 0, clipped = 0;
    for (const AnswerPlace& place : tables.places) {
      for (std::size_t t = place.first; t < place.first + place.values; ++t) {
        if (!host.holds(t)) continue;
        const double value = static_cast<double>(scores[t]), target = static_cast<double>(tables.returns[t]);
        const double old = static_cast<double>(tables.values[t]), range = settings_.cliprange_value;
        const double limited = std::clamp(value, old - range, old + range);
        const double plain = (value - target) * (value - target),
                     of_limited = (limited - target) * (limited - target);
        loss += 0.5 * std::max(plain, of_limited) / tables_.values;
        if (of_limited > plain) {
          clipped += 1 / tables_.values;  // the clipped value does not depend on the weights
        } else {
          weights[t] = static_cast<float>(settings_.vf_coef * (value - target) / tables_.values);
        }
      }
    }
    host.write(weights, std::array{settings_.vf_coef * loss, loss, clipped});
  }

 private:
  const PpoSettings settings_;
  const StepTables& tables_;
};

class PolicyAndValueRule final : public PpoRule {
 public:
  PolicyAndValueRule(const PpoSettings& settings, ReferenceWeights reference, ValueModel value_model)
      : settings_(settings),
        reference_(settings.kl_coef != 0, std::move(reference)),
        value_model_(std::move(value_model)),
        value_rule_(settings, tables_) {}

  std::vector<FrozenModel> frozen_models(const ModelConfig& model) const override {
    return reference_.frozen_models(model);
  }
  std::optional<SecondModel> second_model(const ModelConfig& model) override {
    return SecondModel{.name = kValueModel, .model = value_model_.config(model), .rule = &value_rule_};
  }

  void prepare(TrainingSession& session) override {
    engine::Rank& rank = session.rank();
    const DeviceProperties device = rank.device().properties();
    if (!device.host_memory) {
      throw unsupported(
          fmt::format("stage ppo computes its losses on the host, and was not tested on {}", device.kind),
          "set device=cpu, or use stage grpo");
    }
    sums_ = rank.persistent(DType::kF64, {kSums});
    current_.emplace(session, ScoredModel{.model = session.trained()});
    if (reference_.used()) reference_log_probs_.emplace(session, reference_of(session));
    values_.emplace(rank, session.second(), scorer_settings(session), TokenScorer::Options{});
    value_table_ = rank.persistent(DType::kF32, {values_->tokens()});
    collector_.emplace(session);
    reader_.emplace(rank);
    const StepSettings& step = session.settings().step;
    tables_.microbatches.resize(static_cast<std::size_t>(step.microbatches));
    tables_.held.emplace(rank.mesh().shape(), rank.mesh().place(), step.sequence);
    tables_.is_held.assign(static_cast<std::size_t>(step.micro_batch * step.sequence), 0.0F);
    const std::vector<float> ones(static_cast<std::size_t>(values_->tokens()), 1.0F);
    tables_.held->scatter(ones, tables_.is_held);
  }

  void load_weights(TrainingSession& session) override {
    reference_.load_weights(session);
    if (!restored_) value_model_.load(session, session.second());
    session.second().parallel().distribute_values();
  }

  void before_step(const BeforeStep& step) override {
    if (step.session.rank().measuring() || step.batches.front().returns.empty())
      estimate(step.session, step.batches);
    std::array<double, kSums> counts{};
    if (!step.session.rank().measuring()) {
      PRIMUS_CHECK("PpoRule::before_step", step.batches.size() == tables_.microbatches.size());
      for (std::size_t i = 0; i < step.batches.size(); ++i) {
        const data::Batch& batch = step.batches[i];
        const std::vector<AnswerPlace> places = places_of(batch, settings_.max_completion_length);
        PRIMUS_CHECK("PpoRule::before_step", places.empty() || batch.returns.size() == batch.tokens.size());
        tables_.microbatches[i] = {.places = places,
                                   .old_log_probs = batch.old_log_probs,
                                   .values = batch.values,
                                   .advantages = batch.token_advantages,
                                   .returns = batch.returns};
        for (const AnswerPlace& place : places) {
          counts[0] += static_cast<double>(place.tokens);
          counts[1] += static_cast<double>(place.values);
        }
      }
    }
    add_up(step.session, counts);
    tables_.tokens = std::max(counts[0], 1.0);
    tables_.values = std::max(counts[1], 1.0);
  }

  std::vector<std::string> metrics() const override {
    std::vector<std::string> names = {"loss", "policy_loss", "clip_ratio/region_mean", "ratio/mean",
                                      "approx_kl"};
    if (settings_.reports_entropy) names.emplace_back("entropy");
    return names;
  }
  TokenNeeds needs() const override { return {.statistics = settings_.reports_entropy}; }
  std::vector<std::pair<std::string, double>> host_metrics() const override { return metrics_; }

  void weigh(const TokenLosses& tokens) override {
    if (tokens.rank.measuring()) return;
    const HostWork host(tokens, tables_);
    const std::vector<float> losses = host.read_tokens(tokens.losses);
    const std::vector<float> entropies =
        settings_.reports_entropy ? host.read_tokens(tokens.entropies) : std::vector<float>();
    std::vector<float> weights(losses.size(), 0.0F);
    const HostTables& tables = tables_.microbatches[static_cast<std::size_t>(tokens.microbatch)];
    double loss = 0, clipped = 0, ratios = 0, kl = 0, entropy = 0;
    for (const AnswerPlace& place : tables.places) {
      for (std::size_t t = place.first; t < place.first + place.tokens; ++t) {
        if (!host.holds(t)) continue;
        const double change = -static_cast<double>(losses[t]) - static_cast<double>(tables.old_log_probs[t]);
        const double ratio = std::exp(change), advantage = static_cast<double>(tables.advantages[t]);
        const double limited = std::clamp(ratio, 1 - settings_.cliprange, 1 + settings_.cliprange);
        const double plain = -advantage * ratio, of_limited = -advantage * limited;
        loss += std::max(plain, of_limited) / tables_.tokens;
        ratios += ratio / tables_.tokens;
        kl += 0.5 * change * change / tables_.tokens;
        if (!entropies.empty()) entropy += static_cast<double>(entropies[t]) / tables_.tokens;
        if (of_limited > plain) {
          clipped += 1 / tables_.tokens;  // the clipped ratio does not depend on the weights
        } else {
          weights[t] = static_cast<float>(advantage * ratio / tables_.tokens);
        }
      }
    }
    std::vector<double> sums = {loss, loss, clipped, ratios, kl};
    if (settings_.reports_entropy) sums.push_back(entropy);
    host.write(weights, sums);
  }

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
    return {};
  }

 private:
  static constexpr std::int64_t kSums = 8;

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
  StepTables tables_;
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
