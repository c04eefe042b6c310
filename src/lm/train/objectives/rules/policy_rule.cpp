#include "lm/train/objectives/rules/policy_rule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "lm/train/objectives/rules/held_tokens.h"
#include "lm/train/objectives/rules/top_entropy.h"
#include "lm/train/step/session.h"
#include "turbo/policy_loss/policy_loss.h"

namespace primus {
namespace {

using data::DocumentRole;
using turbo::PolicyAverage;
using turbo::PolicyCorrection;
using turbo::PolicyMetric;
using turbo::PolicyRatio;
using turbo::PolicyTerms;
using turbo::PolicyType;

static_assert(turbo::PolicyLoss::kAnswer == static_cast<int>(DocumentRole::kAnswer));

struct LossName {
  std::string_view name;
  PolicyType type;
  PolicyAverage average;
};
constexpr std::array kLosses = {LossName{"dapo", PolicyType::kClipped, PolicyAverage::kTokens},
                                LossName{"grpo", PolicyType::kClipped, PolicyAverage::kAnswerMeans},
                                LossName{"bnpo", PolicyType::kClipped, PolicyAverage::kMicrobatchMeans},
                                LossName{"dr_grpo", PolicyType::kClipped, PolicyAverage::kLengths},
                                LossName{"luspo", PolicyType::kClipped, PolicyAverage::kAnswerSums},
                                LossName{"cispo", PolicyType::kCispo, PolicyAverage::kTokens},
                                LossName{"sapo", PolicyType::kSapo, PolicyAverage::kAnswerMeans},
                                LossName{"vespo", PolicyType::kVespo, PolicyAverage::kTokens}};

struct LevelName {
  std::string_view name;
  PolicyRatio ratio;
};
constexpr std::array kLevels = {LevelName{"token", PolicyRatio::kToken},
                                LevelName{"sequence", PolicyRatio::kMean}};

struct CorrectionName {
  std::string_view name;
  PolicyCorrection correction;
};
constexpr std::array kCorrections = {CorrectionName{"token_truncate", PolicyCorrection::kTokenTruncate},
                                     CorrectionName{"token_mask", PolicyCorrection::kTokenMask},
                                     CorrectionName{"sequence_truncate", PolicyCorrection::kSequenceTruncate},
                                     CorrectionName{"sequence_mask", PolicyCorrection::kSequenceMask}};

template <class Names>
const auto& find_name(const Names& all, std::string_view name, std::string_view setting) {
  for (const auto& one : all)
    if (one.name == name) return one;
  std::vector<std::string_view> names;
  for (const auto& one : all) names.push_back(one.name);
  throw invalid(fmt::format("{} '{}' does not exist", setting, name),
                fmt::format("choose {}", fmt::join(names, ", ")));
}

bool is_rloo(const PolicySettings& settings) { return settings.method == PolicyMethod::kRloo; }

PolicyTerms terms_of(const PolicySettings& s) {
  PolicyTerms terms{.low = s.epsilon,
                    .high = s.epsilon_high.value_or(s.epsilon),
                    .delta = s.delta.value_or(0),
                    .drift = s.off_policy_mask_threshold.value_or(0),
                    .masks_drift = s.off_policy_mask_threshold.has_value(),
                    .max_length = static_cast<double>(s.max_completion_length),
                    .sapo_negative = s.sapo_temperature_neg,
                    .sapo_positive = s.sapo_temperature_pos,
                    .vespo = {.k_positive = s.vespo.k_pos,
                              .lambda_positive = s.vespo.lambda_pos,
                              .k_negative = s.vespo.k_neg,
                              .lambda_negative = s.vespo.lambda_neg}};
  if (is_rloo(s)) {
    terms.ratio = PolicyRatio::kSum;
    terms.average = PolicyAverage::kAnswers;
    return terms;
  }
  const LossName& loss = find_name(kLosses, s.loss_type, "loss_type");
  terms.type = loss.type;
  terms.average = loss.average;
  terms.ratio = find_name(kLevels, s.importance_sampling_level, "importance_sampling_level").ratio;
  terms.beta = s.beta;
  terms.bias_correction = s.beta != 0 && s.use_bias_correction_kl;
  if (s.vllm_importance_sampling_correction) {
    terms.correction =
        find_name(kCorrections, s.vllm_importance_sampling_mode, "vllm_importance_sampling_mode").correction;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    terms.correction_min = s.vllm_importance_sampling_clip_min.value_or(-kInfinity);
    terms.correction_max = s.vllm_importance_sampling_clip_max.value_or(kInfinity);
  }
  return terms;
}

bool needs_entropies(const PolicySettings& s) { return s.entropy.reported || s.entropy.coef != 0; }

struct NamedMetric {
  std::string_view name;
  PolicyMetric metric;
};

// Returns the metrics of the loss, with TRL's names. TRL has no metric for the mean ratio.
std::vector<NamedMetric> metrics_of(const PolicyTerms& terms, const PolicySettings& settings) {
  std::vector<NamedMetric> metrics = {{"loss", PolicyMetric::kLoss}};
  if (settings.entropy.coef != 0) metrics.push_back({"policy_loss", PolicyMetric::kPolicyLoss});
  if (needs_entropies(settings)) metrics.push_back({"entropy", PolicyMetric::kEntropy});
  if (terms.beta != 0) metrics.push_back({"kl", PolicyMetric::kDivergence});
  if (terms.type == PolicyType::kClipped) {
    metrics.push_back({"clip_ratio/low_mean", PolicyMetric::kLowClipped});
    metrics.push_back({"clip_ratio/high_mean", PolicyMetric::kHighClipped});
    metrics.push_back({"clip_ratio/region_mean", PolicyMetric::kClipped});
  }
  if (terms.type == PolicyType::kCispo) metrics.push_back({"cispo_clip_ratio", PolicyMetric::kHighClipped});
  if (terms.type == PolicyType::kVespo) metrics.push_back({"vespo/phi_seq_mean", PolicyMetric::kPhi});
  metrics.push_back({"ratio/mean", PolicyMetric::kRatio});
  if (settings.has_sampled_log_probs)
    metrics.push_back({"sampling/sampling_logp_difference/mean", PolicyMetric::kSamplingGap});
  if (terms.correction != PolicyCorrection::kNone)
    metrics.push_back({"sampling/importance_sampling_ratio/mean", PolicyMetric::kCorrection});
  return metrics;
}

// The tables of a microbatch on the host: values of this rank's tokens, and of documents.
struct HostTables {
  std::vector<float> mask, old, sampled;  // `old` is empty if the current weights generated the answers
  std::vector<float> chosen;              // empty if all tokens are chosen
  std::vector<float> advantages;
  std::vector<std::int32_t> starts, roles;
  double tokens = 0;  // number of tokens with a mask, on all context ranks
};

// The tables of a microbatch on the device.
struct DeviceTables {
  turbo::PolicyTokens tokens;  // without losses
  Tensor starts, roles, advantages;
};

class PolicyRule final : public LossRule {
 public:
  PolicyRule(const PolicySettings& settings, ReferenceWeights reference)
      : settings_(settings),
        terms_(terms_of(settings)),
        metrics_(metrics_of(terms_, settings)),
        reference_(compares_with_reference(settings), std::move(reference)),
        top_entropy_(settings.entropy.top_quantile) {
    std::ranges::fill(places_, std::int8_t{-1});
    for (std::size_t i = 0; i < metrics_.size(); ++i)
      places_[static_cast<std::size_t>(metrics_[i].metric)] = static_cast<std::int8_t>(i);
  }

  std::vector<FrozenModel> frozen_models(const ModelConfig& model) const override {
    return reference_.frozen_models(model);
  }

  void prepare(TrainingSession& session) override {
    engine::Rank& rank = session.rank();
    const StepSettings& step = session.settings().step;
    all_microbatches_ = step.microbatches * rank.mesh().data_ranks();
    const std::int64_t rows = step.microbatches, documents = step.micro_batch * step.sequence;
    const std::int64_t tokens = documents / rank.mesh().shape().context;
    const auto table = [&](std::int64_t columns) { return rank.persistent(DType::kF32, {rows, columns}); };
    tables_.tokens.mask = table(tokens);
    tables_.tokens.old = table(tokens);
    if (settings_.has_sampled_log_probs) tables_.tokens.sampled = table(tokens);
    // RLOO's divergence is part of the rewards, so its loss does not need the reference.
    if (terms_.beta != 0) {
      tables_.tokens.reference = table(tokens);
      reference_.prepare(session);
    }
    if (chooses_tokens()) {
      tables_.tokens.chosen = table(tokens);
      top_entropy_.prepare(session);
    }
    // A document has at least one token, so a microbatch has at most as many documents as tokens.
    tables_.starts = rank.persistent(DType::kI32, {rows, documents + 1});
    tables_.roles = rank.persistent(DType::kI32, {rows, documents});
    tables_.advantages = table(documents);
    sums_ = rank.persistent(DType::kF64, {documents, turbo::kPolicySums});
    totals_ = rank.persistent(DType::kF64, {2});
    hosts_.resize(static_cast<std::size_t>(rows));
    if (rank.measuring()) return;
    held_.emplace(rank.mesh().shape(), rank.mesh().place(), step.sequence);
    copied_ = rank.device().create_event();
    rank.compute().record(*copied_);
  }

  void load_weights(TrainingSession& session) override { reference_.load_weights(session); }

  void before_step(const BeforeStep& step) override {
    engine::Rank& rank = step.session.rank();
    if (!rank.measuring()) upload(rank, step.batches);
    step.session.parallel().sum_over_data(totals_);
    for (std::size_t i = 0; terms_.beta != 0 && i < step.batches.size(); ++i)
      reference_.score(step.batches[i], tables_of(rank, static_cast<std::int64_t>(i)).tokens.reference);
    if (chooses_tokens()) choose_tokens(rank, step.batches);
  }

  std::vector<std::string> metrics() const override {
    std::vector<std::string> names;
    for (const NamedMetric& metric : metrics_) names.emplace_back(metric.name);
    return names;
  }

  TokenNeeds needs() const override {
    return {.statistics = needs_entropies(settings_), .entropy_weights = settings_.entropy.coef != 0};
  }

  void weigh(const TokenLosses& tokens) override {
    engine::Rank& rank = tokens.rank;
    DeviceTables tables = tables_of(rank, tokens.microbatch);
    tables.tokens.losses = tokens.losses;
    tables.tokens.entropies = tokens.entropies;
    const Tensor sums = sums_.slice(0, tables.roles.elements());
    turbo::launch(
        rank.context(),
        turbo::PolicySums{.terms = terms_, .tokens = tables.tokens, .starts = tables.starts, .sums = sums});
    if (comm::Communicator* const context = rank.mesh().context())
      context->all_reduce(rank.compute(), sums, sums, comm::Reduction::kSum);
    turbo::PolicyLoss loss{.terms = terms_,
                           .tokens = tables.tokens,
                           .microbatches = static_cast<double>(all_microbatches_),
                           .microbatch_tokens = hosts_[static_cast<std::size_t>(tokens.microbatch)].tokens,
                           .entropy_coef = settings_.entropy.coef,
                           .places = {},
                           // All context ranks have the same answers, and metrics are summed over ranks, so
                           // only one context rank adds metrics of answers.
                           .adds_answers = rank.mesh().place().context == 0,
                           .starts = tables.starts,
                           .roles = tables.roles,
                           .advantages = tables.advantages,
                           .sums = sums,
                           .totals = totals_,
                           .weights = tokens.weights,
                           .entropy_weights = tokens.entropy_weights,
                           .metrics = tokens.metrics,
                           .workspace = {}};
    std::ranges::copy(places_, loss.places);
    turbo::launch(rank.context(), loss);
  }

 private:
  DeviceTables tables_of(engine::Rank& rank, std::int64_t microbatch) {
    const auto row = [&](const Tensor& table, std::int64_t count) {
      if (table.absent()) return Tensor();
      return table.slice(microbatch, microbatch + 1).reshaped({table.cols()}).slice(0, count);
    };
    const HostTables& host = hosts_[static_cast<std::size_t>(microbatch)];
    const std::int64_t tokens = tables_.tokens.mask.cols();
    const std::int64_t documents =
        rank.measuring() ? tables_.roles.cols() : static_cast<std::int64_t>(host.roles.size());
    const bool has_old = rank.measuring() || !host.old.empty();
    return {.tokens = {.losses = {},
                       .mask = row(tables_.tokens.mask, tokens),
                       .old = has_old ? row(tables_.tokens.old, tokens) : Tensor(),
                       .sampled = row(tables_.tokens.sampled, tokens),
                       .reference = row(tables_.tokens.reference, tokens),
                       .chosen = row(tables_.tokens.chosen, tokens)},
            .starts = row(tables_.starts, documents + 1),
            .roles = row(tables_.roles, documents),
            .advantages = row(tables_.advantages, documents)};
  }

  bool chooses_tokens() const { return settings_.entropy.top_quantile < 1; }

  // Uploads which tokens have a policy loss.
  void choose_tokens(engine::Rank& rank, std::span<const data::Batch> batches) {
    std::vector<std::vector<float>> masks;
    for (const data::Batch& batch : batches) masks.push_back(answer_mask(batch));
    const std::vector<std::vector<float>> chosen = top_entropy_.choose(batches, masks);
    if (rank.measuring()) return;
    copied_->synchronize();  // the previous copies read the host tables
    for (std::size_t i = 0; i < batches.size(); ++i) {
      hosts_[i].chosen = held_->select(chosen[i]);
      const Tensor to = tables_of(rank, static_cast<std::int64_t>(i)).tokens.chosen;
      rank.compute().copy_to_device(to.data, hosts_[i].chosen.data(), to.bytes());
    }
    rank.compute().record(*copied_);
  }

  // Returns the loss mask of a microbatch, which is 0 outside answers.
  static std::vector<float> answer_mask(const data::Batch& batch) {
    std::vector<float> mask = batch.loss_mask;
    for (std::size_t d = 0; d < batch.document_roles.size(); ++d) {
      if (batch.document_roles[d] != DocumentRole::kAnswer)
        std::fill(mask.begin() + batch.document_starts[d], mask.begin() + batch.document_starts[d + 1], 0.0F);
    }
    return mask;
  }

  // Copies the tables of the microbatches and this rank's part of the totals to the device.
  void upload(engine::Rank& rank, std::span<const data::Batch> batches) {
    PRIMUS_CHECK("PolicyRule::before_step", batches.size() <= hosts_.size());
    copied_->synchronize();  // the previous step's copies read the host tables
    total_ = {};
    for (std::size_t i = 0; i < batches.size(); ++i) {
      fill(batches[i], hosts_[i]);
      const HostTables& host = hosts_[i];
      const DeviceTables tables = tables_of(rank, static_cast<std::int64_t>(i));
      const auto copy = [&](const Tensor& to, const auto& from) {
        if (!to.absent()) rank.compute().copy_to_device(to.data, from.data(), to.bytes());
      };
      copy(tables.tokens.mask, host.mask);
      copy(tables.tokens.old, host.old);
      copy(tables.tokens.sampled, host.sampled);
      copy(tables.starts, host.starts);
      copy(tables.roles, host.roles);
      copy(tables.advantages, host.advantages);
    }
    rank.compute().copy_to_device(totals_.data, total_.data(), totals_.bytes());
    rank.compute().record(*copied_);
  }

  // Fills the tables of a microbatch, and adds its numbers to the totals.
  void fill(const data::Batch& batch, HostTables& host) {
    constexpr auto kWhere = "PolicyRule::before_step";
    const std::size_t documents = batch.document_roles.size(), tokens = batch.loss_mask.size();
    PRIMUS_CHECK(kWhere, documents > 0 && batch.document_starts.size() == documents + 1);
    PRIMUS_CHECK(kWhere, batch.document_values.size() == documents);
    PRIMUS_CHECK(kWhere, batch.old_log_probs.empty() || batch.old_log_probs.size() == tokens);
    PRIMUS_CHECK(kWhere, !settings_.has_sampled_log_probs || batch.sampled_log_probs.size() == tokens);
    const std::vector<float> mask = answer_mask(batch);
    host.roles.clear();
    for (const DocumentRole role : batch.document_roles) {
      host.roles.push_back(static_cast<std::int32_t>(role));
      if (role == DocumentRole::kAnswer) total_[0] += 1;
    }
    host.tokens = static_cast<double>(std::ranges::count_if(mask, [](float m) { return m != 0; }));
    total_[1] += host.tokens;
    host.mask = held_->select(mask);
    host.old = held_->select(batch.old_log_probs);
    if (settings_.has_sampled_log_probs) host.sampled = held_->select(batch.sampled_log_probs);
    host.starts = held_->starts(batch.document_starts);
    host.advantages = batch.document_values;
  }

  const PolicySettings settings_;
  const PolicyTerms terms_;
  const std::vector<NamedMetric> metrics_;
  ReferenceModel reference_;
  TopEntropy top_entropy_;
  std::array<std::int8_t, turbo::kPolicyMetrics> places_{};
  std::int64_t all_microbatches_ = 1;
  DeviceTables tables_;  // the tables of all microbatches of the step: a row for each
  Tensor sums_;          // [documents, kPolicySums] fp64, of one microbatch
  Tensor totals_;        // [2] fp64: answers and tokens of the step
  std::optional<HeldTokens> held_;
  std::vector<HostTables> hosts_;
  std::array<double, 2> total_{};
  std::unique_ptr<Event> copied_;
};

void require(bool condition, std::string_view setting, double value, std::string_view range) {
  if (!condition) throw invalid(fmt::format("{} is {}, but must be {}", setting, value, range));
}

// Refuses a setting that has no effect with `with`.
void refuse(bool used, std::string_view setting, std::string_view with) {
  if (used)
    throw invalid(fmt::format("{} has no effect with {}", setting, with), fmt::format("remove {}", setting));
}

void check_rloo(const PolicySettings& s) {
  const PolicySettings standard;
  refuse(s.loss_type != standard.loss_type, "loss_type", "RLOO");
  refuse(s.importance_sampling_level != standard.importance_sampling_level, "importance_sampling_level",
         "RLOO, which always has one ratio per answer");
  refuse(s.delta.has_value(), "delta", "RLOO");
  refuse(s.entropy.coef != 0, "entropy_coef", "RLOO");
  refuse(s.entropy.top_quantile != 1, "top_entropy_quantile", "RLOO");
  refuse(s.off_policy_mask_threshold.has_value(), "off_policy_mask_threshold", "RLOO");
  refuse(s.vllm_importance_sampling_correction, "vllm_importance_sampling_correction", "RLOO");
}

void check_grpo(const PolicySettings& s) {
  const LossName& loss = find_name(kLosses, s.loss_type, "loss_type");
  const LevelName& level = find_name(kLevels, s.importance_sampling_level, "importance_sampling_level");
  refuse(s.delta && loss.type != PolicyType::kClipped, "delta", "the loss " + s.loss_type);
  if (loss.type == PolicyType::kVespo && level.ratio != PolicyRatio::kToken) {
    throw invalid("importance_sampling_level is sequence, but vespo computes the ratios of sequences itself",
                  "set importance_sampling_level to token");
  }
  if (loss.type == PolicyType::kCispo && !s.epsilon_high) {
    throw invalid("loss_type is cispo, but epsilon_high is not set: it is the largest ratio",
                  "set epsilon_high; the authors of ScaleRL use 5");
  }
  if (!s.vllm_importance_sampling_correction) return;
  const CorrectionName& mode =
      find_name(kCorrections, s.vllm_importance_sampling_mode, "vllm_importance_sampling_mode");
  if (!s.has_sampled_log_probs)
    throw invalid("vllm_importance_sampling_correction needs the log-probabilities of the sampler");
  const bool of_tokens =
      mode.correction == PolicyCorrection::kTokenTruncate || mode.correction == PolicyCorrection::kTokenMask;
  if (loss.type == PolicyType::kVespo && !of_tokens) {
    throw invalid(fmt::format("vespo cannot use vllm_importance_sampling_mode {}", mode.name),
                  "choose token_truncate or token_mask");
  }
  const std::optional<double> low = s.vllm_importance_sampling_clip_min,
                              high = s.vllm_importance_sampling_clip_max;
  if (high)
    require(*high > 0 && *high >= low.value_or(0), "vllm_importance_sampling_clip_max", *high,
            "above 0 and at least vllm_importance_sampling_clip_min");
}

}  // namespace

bool compares_with_reference(const PolicySettings& settings) { return settings.beta != 0; }

void check_policy(const PolicySettings& s) {
  const auto above_0 = [](double value, std::string_view setting) {
    require(std::isfinite(value) && value > 0, setting, value, "above 0");
  };
  require(std::isfinite(s.beta) && s.beta >= 0, "beta", s.beta, "0 or a number above 0");
  require(std::isfinite(s.entropy.coef) && s.entropy.coef >= 0, "entropy_coef", s.entropy.coef,
          "0 or a number above 0");
  require(s.entropy.top_quantile >= 0 && s.entropy.top_quantile <= 1, "top_entropy_quantile",
          s.entropy.top_quantile, "at least 0 and at most 1");
  require(std::isfinite(s.epsilon) && s.epsilon >= 0, "epsilon", s.epsilon, "0 or a number above 0");
  if (s.epsilon_high)
    require(std::isfinite(*s.epsilon_high) && *s.epsilon_high >= 0, "epsilon_high", *s.epsilon_high,
            "0 or a number above 0");
  if (s.delta) above_0(*s.delta, "delta");
  above_0(s.sapo_temperature_neg, "sapo_temperature_neg");
  above_0(s.sapo_temperature_pos, "sapo_temperature_pos");
  above_0(s.temperature, "temperature");
  require(s.max_completion_length > 0, "max_completion_length", static_cast<double>(s.max_completion_length),
          "above 0");
  if (is_rloo(s)) {
    check_rloo(s);
  } else {
    check_grpo(s);
  }
}

ModelConfig with_temperature(ModelConfig model, double temperature) {
  if (temperature != 1 && model.logit_cap > 0) {
    throw unsupported(fmt::format("temperature is {}, but the model caps its logits", temperature),
                      "set temperature to 1");
  }
  model.logit_divisor *= temperature;
  return model;
}

MakeLossRule policy_rule(const PolicySettings& settings, ReferenceWeights reference) {
  check_policy(settings);
  return [settings, load = std::move(reference)] { return std::make_unique<PolicyRule>(settings, load); };
}

}  // namespace primus
