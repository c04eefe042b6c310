#include "lm/train/objectives/rules/ppo_losses.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "lm/train/step/session.h"

namespace primus {

using turbo::PolicyMetric;
using turbo::PolicyType;

namespace {

constexpr std::array kPolicyMetrics = {PolicyMetric::kLoss,          PolicyMetric::kPolicyLoss,
                                       PolicyMetric::kClipped,       PolicyMetric::kRatio,
                                       PolicyMetric::kSquaredChange, PolicyMetric::kEntropy};
constexpr std::array kValueMetrics = {PolicyMetric::kLoss, PolicyMetric::kPolicyLoss, PolicyMetric::kClipped};

}  // namespace

std::vector<AnswerPlace> places_of(const data::BatchView& batch, std::int64_t max_completion_length) {
  std::vector<AnswerPlace> places;
  for (std::size_t d = 0; d < batch.document_roles.size(); ++d) {
    if (batch.document_roles[d] != data::DocumentRole::kAnswer) continue;
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

PpoLosses::PpoLosses(TrainingSession& session, const PpoSettings& settings)
    : settings_(settings),
      tokens_(
          static_cast<std::size_t>(session.settings().step.micro_batch * session.settings().step.sequence)),
      held_(session.rank().mesh().shape(), session.rank().mesh().place(), session.settings().step.sequence) {
  engine::Rank& rank = session.rank();
  const StepSettings& step = session.settings().step;
  const std::int64_t rows = step.micro_batch, positions = step.sequence / rank.mesh().shape().context;
  tables_ = rank.persistent(DType::kF32, {step.microbatches, kTables, rows * positions});
  totals_ = rank.persistent(DType::kF64, {2, 2});
  starts_ = rank.persistent(DType::kI32, {rows + 1});
  roles_ = rank.persistent(DType::kI32, {rows});
  host_.resize(static_cast<std::size_t>(tables_.elements()));
  if (rank.measuring()) return;
  std::vector<std::int32_t> starts;
  for (std::int64_t row = 0; row <= rows; ++row) starts.push_back(static_cast<std::int32_t>(row * positions));
  const std::vector<std::int32_t> roles(static_cast<std::size_t>(rows), turbo::PolicyLoss::kAnswer);
  rank.compute().copy_to_device(starts_.data, starts.data(), starts_.bytes());
  rank.compute().copy_to_device(roles_.data, roles.data(), roles_.bytes());
  rank.compute().synchronize();  // waits, because the vectors end with the call
  copied_ = rank.device().create_event();
  rank.compute().record(*copied_);
}

Tensor PpoLosses::table(std::int64_t microbatch, Table which) const {
  const auto place = static_cast<std::int64_t>(which);
  const std::int64_t tokens = tables_.shape[2], first = (microbatch * kTables + place) * tokens;
  return tables_.reshaped({tables_.elements()}).slice(first, first + tokens);
}

Tensor PpoLosses::totals(Loss of) const {
  const auto row = static_cast<std::int64_t>(of);
  return totals_.slice(row, row + 1).reshaped({2});
}

void PpoLosses::fill(const data::Batch& batch, std::int64_t microbatch) {
  const std::vector<AnswerPlace> places = places_of(batch, settings_.max_completion_length);
  std::vector<float> answers(tokens_), values(tokens_);
  for (const AnswerPlace& place : places) {
    std::fill_n(answers.begin() + static_cast<std::ptrdiff_t>(place.first), place.tokens, 1.0F);
    std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(place.first), place.values, 1.0F);
    host_totals_[1] += static_cast<double>(place.tokens);
    host_totals_[3] += static_cast<double>(place.values);
  }
  const std::pair<Table, const std::vector<float>&> all[] = {{Table::kAnswers, answers},
                                                             {Table::kValueTokens, values},
                                                             {Table::kOldLogProbs, batch.old_log_probs},
                                                             {Table::kValues, batch.values},
                                                             {Table::kAdvantages, batch.token_advantages},
                                                             {Table::kReturns, batch.returns}};
  for (const auto& [which, from] : all) {
    // A microbatch without answers needs no estimates.
    PRIMUS_CHECK("PpoLosses::begin_step", from.size() == tokens_ || (from.empty() && places.empty()));
    const std::vector<float> held = held_.select(from);
    const std::int64_t first = (microbatch * kTables + static_cast<std::int64_t>(which)) * tables_.shape[2];
    std::ranges::copy(held, host_.begin() + first);
  }
}

void PpoLosses::begin_step(TrainingSession& session, std::span<const data::Batch> batches) {
  engine::Rank& rank = session.rank();
  if (!rank.measuring()) {
    PRIMUS_CHECK("PpoLosses::begin_step", std::cmp_equal(batches.size(), tables_.shape[0]));
    copied_->synchronize();  // the copies of the previous step read the tables
    host_totals_.assign(4, 0.0);
    for (std::size_t i = 0; i < batches.size(); ++i) fill(batches[i], static_cast<std::int64_t>(i));
    rank.compute().copy_to_device(tables_.data, host_.data(), tables_.bytes());
    rank.compute().copy_to_device(totals_.data, host_totals_.data(), totals_.bytes());
    rank.compute().record(*copied_);
  }
  session.parallel().sum_over_data(totals_);
}

std::vector<std::string> PpoLosses::policy_metrics(const PpoSettings& settings) {
  std::vector<std::string> names = {"loss", "policy_loss", "clip_ratio/region_mean", "ratio/mean",
                                    "approx_kl"};
  if (settings.reports_entropy) names.emplace_back("entropy");
  return names;
}

void PpoLosses::weigh_policy(const TokenLosses& tokens) {
  const std::int64_t i = tokens.microbatch;
  weigh(Loss::kPolicy, tokens, {.low = settings_.cliprange, .high = settings_.cliprange},
        {.losses = tokens.losses,
         .mask = table(i, Table::kAnswers),
         .old = table(i, Table::kOldLogProbs),
         .sampled = {},
         .reference = {},
         .entropies = tokens.entropies,
         .chosen = {},
         .advantages = table(i, Table::kAdvantages)},
        std::span(kPolicyMetrics).first(policy_metrics(settings_).size()));
}

void PpoLosses::weigh_values(const TokenLosses& tokens) {
  const std::int64_t i = tokens.microbatch;
  weigh(Loss::kValue, tokens,
        {.type = PolicyType::kValues,
         .low = settings_.cliprange_value,
         .high = settings_.cliprange_value,
         .factor = settings_.vf_coef},
        {.losses = tokens.losses,
         .mask = table(i, Table::kValueTokens),
         .old = table(i, Table::kValues),
         .sampled = {},
         .reference = {},
         .entropies = {},
         .chosen = {},
         .returns = table(i, Table::kReturns)},
        kValueMetrics);
}

void PpoLosses::weigh(Loss of, const TokenLosses& tokens, const turbo::PolicyTerms& terms,
                      const turbo::PolicyTokens& of_tokens, std::span<const PolicyMetric> metrics) {
  turbo::PolicyLoss loss{.terms = terms,
                         .tokens = of_tokens,
                         .places = {},
                         .adds_answers = false,
                         .starts = starts_,
                         .roles = roles_,
                         .advantages = {},
                         .sums = {},
                         .totals = totals(of),
                         .weights = tokens.weights,
                         .entropy_weights = {},
                         .metrics = tokens.metrics,
                         .workspace = {}};
  std::ranges::fill(loss.places, std::int8_t{-1});
  for (std::size_t m = 0; m < metrics.size(); ++m)
    loss.places[static_cast<std::size_t>(metrics[m])] = static_cast<std::int8_t>(m);
  turbo::launch(tokens.rank.context(), loss);
}

}  // namespace primus
