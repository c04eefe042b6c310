#include "lm/train/objectives/rules/preference_rule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "lm/train/objectives/rules/held_tokens.h"
#include "lm/train/step/session.h"
#include "turbo/preference_loss/preference_loss.h"

namespace primus {
namespace {

using data::DocumentRole;
using turbo::PreferenceDivergence;
using turbo::PreferenceForm;
using turbo::PreferenceMetric;
using turbo::PreferenceTerms;
using turbo::PreferenceTotal;
using turbo::PreferenceType;

static_assert(turbo::PreferenceLoss::kNone == static_cast<int>(DocumentRole::kNone) &&
              turbo::PreferenceLoss::kChosen == static_cast<int>(DocumentRole::kChosen) &&
              turbo::PreferenceLoss::kRejected == static_cast<int>(DocumentRole::kRejected) &&
              turbo::PreferenceLoss::kMismatched == static_cast<int>(DocumentRole::kMismatched));

struct TypeName {
  std::string_view name;
  PreferenceType type;
};
constexpr std::array kDpoTypes = {TypeName{"sigmoid", PreferenceType::kSigmoid},
                                  TypeName{"hinge", PreferenceType::kHinge},
                                  TypeName{"ipo", PreferenceType::kIpo},
                                  TypeName{"exo_pair", PreferenceType::kExoPair},
                                  TypeName{"nca_pair", PreferenceType::kNcaPair},
                                  TypeName{"robust", PreferenceType::kRobust},
                                  TypeName{"bco_pair", PreferenceType::kBcoPair},
                                  TypeName{"sppo_hard", PreferenceType::kSppoHard},
                                  TypeName{"aot", PreferenceType::kAot},
                                  TypeName{"aot_unpaired", PreferenceType::kAotUnpaired},
                                  TypeName{"apo_zero", PreferenceType::kApoZero},
                                  TypeName{"apo_down", PreferenceType::kApoDown},
                                  TypeName{"discopop", PreferenceType::kDiscopop},
                                  TypeName{"sft", PreferenceType::kLikelihood},
                                  TypeName{"sigmoid_norm", PreferenceType::kSigmoidNorm}};
constexpr std::array kKtoTypes = {TypeName{"kto", PreferenceType::kKto},
                                  TypeName{"apo_zero_unpaired", PreferenceType::kApoZeroUnpaired}};
constexpr std::array kRewardTypes = {TypeName{"bradley_terry", PreferenceType::kSigmoid}};
constexpr std::array kOrpoTypes = {TypeName{"orpo", PreferenceType::kSigmoid}};
constexpr std::array kCpoTypes = {
    TypeName{"sigmoid", PreferenceType::kSigmoid}, TypeName{"hinge", PreferenceType::kHinge},
    TypeName{"ipo", PreferenceType::kIpo}, TypeName{"simpo", PreferenceType::kSimpo}};

struct DivergenceName {
  std::string_view name;
  PreferenceDivergence divergence;
};
constexpr std::array kDivergences = {DivergenceName{"reverse_kl", PreferenceDivergence::kReverseKl},
                                     DivergenceName{"forward_kl", PreferenceDivergence::kForwardKl},
                                     DivergenceName{"js_divergence", PreferenceDivergence::kJensenShannon},
                                     DivergenceName{"alpha_divergence", PreferenceDivergence::kAlpha}};

// Returns the method's loss types; the first one is the default.
std::span<const TypeName> types_of(PreferenceMethod method) {
  switch (method) {
    case PreferenceMethod::kKto:
      return kKtoTypes;
    case PreferenceMethod::kOrpo:
      return kOrpoTypes;
    case PreferenceMethod::kCpo:
      return kCpoTypes;
    case PreferenceMethod::kReward:
      return kRewardTypes;
    default:
      return kDpoTypes;
  }
}

template <class Named>
const Named& find_name(std::span<const Named> all, std::string_view name, std::string_view setting) {
  const auto found = std::ranges::find(all, name, &Named::name);
  if (found != all.end()) return *found;
  std::vector<std::string_view> names;
  for (const Named& one : all) names.push_back(one.name);
  throw invalid(fmt::format("{} '{}' does not exist", setting, name),
                fmt::format("choose {}", fmt::join(names, ", ")));
}

void require(bool condition, std::string_view setting, double value, std::string_view range) {
  if (!condition) throw invalid(fmt::format("{} is {}, but must be {}", setting, value, range));
}

std::vector<TypeName> chosen_types(const PreferenceSettings& settings) {
  const std::span<const TypeName> all = types_of(settings.method);
  if (settings.loss_types.empty()) return {all.front()};
  std::vector<TypeName> types;
  for (const std::string& name : settings.loss_types) types.push_back(find_name(all, name, "loss_type"));
  return types;
}

PreferenceTerms terms_of(const PreferenceSettings& settings) {
  constexpr std::array kForms = {PreferenceForm::kDpo, PreferenceForm::kKto, PreferenceForm::kOrpo,
                                 PreferenceForm::kCpo, PreferenceForm::kReward};
  PreferenceTerms terms{.form = kForms[static_cast<std::size_t>(settings.method)],
                        .divergence = find_name(std::span<const DivergenceName>(kDivergences),
                                                settings.f_divergence_type, "f_divergence_type")
                                          .divergence,
                        .beta = settings.beta,
                        .smoothing = settings.label_smoothing,
                        .tau = settings.discopop_tau,
                        .alpha = settings.f_alpha_divergence_coef,
                        .gamma = settings.simpo_gamma,
                        .desirable = settings.desirable_weight,
                        .undesirable = settings.undesirable_weight,
                        .centering = settings.center_rewards_coefficient};
  const std::vector<TypeName> types = chosen_types(settings);
  for (std::size_t i = 0; i < types.size(); ++i) {
    const double weight = settings.loss_weights.empty() ? 1 : settings.loss_weights[i];
    terms.type_weights[static_cast<int>(types[i].type)] += weight;
  }
  if (terms.form == PreferenceForm::kDpo)
    terms.likelihood_weight = terms.weight_of(PreferenceType::kLikelihood);
  if (terms.form == PreferenceForm::kOrpo) terms.likelihood_weight = 1;
  if (terms.form == PreferenceForm::kReward) terms.beta = 1;
  if (terms.form == PreferenceForm::kCpo) {
    terms.likelihood_weight = settings.cpo_alpha;
    terms.averages =
        terms.weight_of(PreferenceType::kIpo) != 0 || terms.weight_of(PreferenceType::kSimpo) != 0;
  }
  return terms;
}

struct NamedMetric {
  std::string_view name;
  PreferenceMetric metric;
};

// Returns the metrics that TRL logs for this loss, with its names.
std::vector<NamedMetric> metrics_of(PreferenceForm form) {
  if (form == PreferenceForm::kReward) {
    return {{"loss", PreferenceMetric::kLoss},
            {"accuracy", PreferenceMetric::kAccuracies},
            {"margin", PreferenceMetric::kMargins},
            {"mean_reward", PreferenceMetric::kScores}};
  }
  std::vector<NamedMetric> metrics = {{"loss", PreferenceMetric::kLoss},
                                      {"rewards/chosen", PreferenceMetric::kChosenRewards},
                                      {"rewards/rejected", PreferenceMetric::kRejectedRewards}};
  if (form != PreferenceForm::kKto) metrics.push_back({"rewards/accuracies", PreferenceMetric::kAccuracies});
  metrics.push_back({"rewards/margins", PreferenceMetric::kMargins});
  metrics.push_back({"logps/chosen", PreferenceMetric::kChosenLogProbs});
  metrics.push_back({"logps/rejected", PreferenceMetric::kRejectedLogProbs});
  if (form == PreferenceForm::kKto) metrics.push_back({"kl", PreferenceMetric::kDivergence});
  if (form == PreferenceForm::kOrpo || form == PreferenceForm::kCpo)
    metrics.push_back({"nll_loss", PreferenceMetric::kLikelihoodLoss});
  if (form == PreferenceForm::kOrpo) {
    metrics.push_back({"log_odds_ratio", PreferenceMetric::kLogOddsRatio});
    metrics.push_back({"log_odds_chosen", PreferenceMetric::kLogOddsChosen});
  }
  return metrics;
}

// The tables of a microbatch on the host, for the tokens of this rank.
struct HostTables {
  std::vector<float> factors, likelihood_factors, masks, lengths;
  std::vector<double> margins;
  std::vector<std::int32_t> starts, roles;
};

// The tables of a microbatch on the device.
struct DeviceTables {
  Tensor factors, likelihood_factors;  // [tokens]
  Tensor masks;                        // [tokens]: 1 for tokens of answers; only with weighted pairs
  Tensor starts, roles, lengths;       // [documents]; starts: [documents + 1]
  // [documents] fp64: sums under the reference model. For scores: the margin of each pair, at its chosen
  // text.
  Tensor reference;
};

class PreferenceRule final : public LossRule {
 public:
  PreferenceRule(const PreferenceSettings& settings, ReferenceWeights reference)
      : settings_(settings),
        terms_(terms_of(settings)),
        metrics_(metrics_of(terms_.form)),
        reference_(compares_with_reference(settings), std::move(reference)) {
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
    has_losses_ = session.model().last(session.model().chunks() - 1);
    const std::int64_t rows = step.microbatches, documents = step.micro_batch * step.sequence;
    const std::int64_t tokens = documents / rank.mesh().shape().context;
    tables_.factors = rank.persistent(DType::kF32, {rows, tokens});
    if (terms_.likelihood_weight != 0) {
      tables_.likelihood_factors = rank.persistent(DType::kF32, {rows, tokens});
      sums_.likelihoods = rank.persistent(DType::kF64, {documents});
    }
    if (settings_.use_weighting) {
      tables_.masks = rank.persistent(DType::kF32, {rows, tokens});
      sums_.confidences = rank.persistent(DType::kF64, {documents});
    }
    // A document has at least one token, so a microbatch has at most as many documents as tokens.
    tables_.starts = rank.persistent(DType::kI32, {rows, documents + 1});
    tables_.roles = rank.persistent(DType::kI32, {rows, documents});
    tables_.lengths = rank.persistent(DType::kF32, {rows, documents});
    sums_.answers = rank.persistent(DType::kF64, {documents});
    sums_.slopes = rank.persistent(DType::kF32, {documents, 2});
    sums_.totals = rank.persistent(DType::kF64, {turbo::kPreferenceTotals});
    hosts_.resize(static_cast<std::size_t>(rows));
    if (is_reward()) tables_.reference = rank.persistent(DType::kF64, {rows, documents});
    if (reference_.used()) {
      tables_.reference = rank.persistent(DType::kF64, {rows, documents});
      sums_.reference_losses = rank.persistent(DType::kF32, {tokens});
      reference_.prepare(session);
    }
    if (rank.measuring()) return;
    held_.emplace(rank.mesh().shape(), rank.mesh().place(), step.sequence);
    copied_ = rank.device().create_event();
    rank.compute().record(*copied_);
  }

  void load_weights(TrainingSession& session) override { reference_.load_weights(session); }

  void before_step(const BeforeStep& step) override {
    engine::Rank& rank = step.session.rank();
    if (!rank.measuring()) upload(rank, step.batches);
    step.session.parallel().sum_over_data(sums_.totals);
    for (std::size_t i = 0; reference_.used() && i < step.batches.size(); ++i) {
      reference_.score(step.batches[i], sums_.reference_losses);
      if (!has_losses_) continue;
      const DeviceTables tables = tables_of(rank, static_cast<std::int64_t>(i));
      sum_documents(rank, sums_.reference_losses, tables.factors, tables.starts, tables.reference);
    }
  }

  TokenNeeds needs() const override { return {.statistics = settings_.use_weighting}; }

  std::vector<std::string> metrics() const override {
    std::vector<std::string> names;
    for (const NamedMetric& metric : metrics_) names.emplace_back(metric.name);
    return names;
  }

  void weigh(const TokenLosses& tokens) override {
    engine::Rank& rank = tokens.rank;
    const DeviceTables tables = tables_of(rank, tokens.microbatch);
    const std::int64_t documents = tables.roles.elements();
    const Tensor sums = sums_.answers.slice(0, documents);
    sum_documents(rank, tokens.losses, tables.factors, tables.starts, sums);
    Tensor likelihoods;
    if (!sums_.likelihoods.absent()) {
      likelihoods = sums_.likelihoods.slice(0, documents);
      sum_documents(rank, tokens.losses, tables.likelihood_factors, tables.starts, likelihoods);
    }
    Tensor confidences;
    if (!sums_.confidences.absent()) {
      confidences = sums_.confidences.slice(0, documents);
      sum_documents(rank, tokens.losses, tables.masks, tables.starts, confidences, tokens.collisions);
    }
    turbo::PreferenceLoss loss{.terms = terms_,
                               .microbatches = static_cast<double>(all_microbatches_),
                               .places = {},
                               // All context ranks have the same sums, and metrics are summed over ranks, so
                               // only one context rank adds metrics.
                               .adds_metrics = rank.mesh().place().context == 0,
                               .roles = tables.roles,
                               .lengths = tables.lengths,
                               .sums = sums,
                               .reference = tables.reference,
                               .likelihoods = likelihoods,
                               .totals = sums_.totals,
                               .confidences = confidences,
                               .slopes = sums_.slopes.slice(0, documents),
                               .metrics = tokens.metrics,
                               .workspace = {}};
    std::ranges::copy(places_, loss.places);
    turbo::launch(rank.context(), loss);
    turbo::launch(rank.context(), turbo::DocumentWeights{.slopes = loss.slopes,
                                                         .factors = tables.factors,
                                                         .likelihood_factors = tables.likelihood_factors,
                                                         .starts = tables.starts,
                                                         .weights = tokens.weights});
  }

 private:
  // Returns whether the losses of tokens are scores. Then only the last score of each text counts.
  bool is_reward() const { return terms_.form == PreferenceForm::kReward; }

  // Sums over all tokens of each document, including the tokens of other context ranks.
  void sum_documents(engine::Rank& rank, const Tensor& losses, const Tensor& factors, const Tensor& starts,
                     const Tensor& sums, const Tensor& collisions = {}) {
    turbo::launch(
        rank.context(),
        turbo::DocumentSums{
            .losses = losses, .factors = factors, .starts = starts, .sums = sums, .collisions = collisions});
    if (comm::Communicator* const context = rank.mesh().context())
      context->all_reduce(rank.compute(), sums, sums, comm::Reduction::kSum);
  }

  DeviceTables tables_of(engine::Rank& rank, std::int64_t microbatch) {
    const auto row = [&](const Tensor& table, std::int64_t count) {
      if (table.absent()) return Tensor();
      return table.slice(microbatch, microbatch + 1).reshaped({table.cols()}).slice(0, count);
    };
    const std::int64_t tokens = tables_.factors.cols();
    const std::int64_t documents =
        rank.measuring()
            ? tables_.roles.cols()
            : static_cast<std::int64_t>(hosts_[static_cast<std::size_t>(microbatch)].roles.size());
    return {.factors = row(tables_.factors, tokens),
            .likelihood_factors = row(tables_.likelihood_factors, tokens),
            .masks = row(tables_.masks, tokens),
            .starts = row(tables_.starts, documents + 1),
            .roles = row(tables_.roles, documents),
            .lengths = row(tables_.lengths, documents),
            .reference = row(tables_.reference, documents)};
  }

  // Copies the tables of all microbatches and this rank's part of the totals to the device.
  void upload(engine::Rank& rank, std::span<const data::Batch> batches) {
    PRIMUS_CHECK("PreferenceRule::before_step", batches.size() == hosts_.size());
    copied_->synchronize();  // the previous step's copies read the host tables
    total_.fill(0);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      fill(batches[i], hosts_[i]);
      const HostTables& host = hosts_[i];
      const DeviceTables tables = tables_of(rank, static_cast<std::int64_t>(i));
      const auto copy = [&](const Tensor& to, const auto& from) {
        if (!to.absent()) rank.compute().copy_to_device(to.data, from.data(), to.bytes());
      };
      copy(tables.factors, host.factors);
      copy(tables.likelihood_factors, host.likelihood_factors);
      copy(tables.masks, host.masks);
      if (is_reward()) copy(tables.reference, host.margins);
      copy(tables.starts, host.starts);
      copy(tables.roles, host.roles);
      copy(tables.lengths, host.lengths);
    }
    rank.compute().copy_to_device(sums_.totals.data, total_.data(), sums_.totals.bytes());
    rank.compute().record(*copied_);
  }

  double& total(PreferenceTotal which) { return total_[static_cast<std::size_t>(which)]; }

  // Fills the tables of a microbatch, and adds its numbers to the totals.
  void fill(const data::Batch& batch, HostTables& host) {
    const std::size_t documents = batch.document_roles.size();
    PRIMUS_CHECK("PreferenceRule::before_step",
                 documents > 0 && batch.document_starts.size() == documents + 1);
    std::vector<float> factors = batch.loss_mask, likelihood;
    if (terms_.likelihood_weight != 0) likelihood.assign(factors.size(), 0);
    host.roles.clear();
    host.margins.clear();
    host.lengths.clear();
    const auto begin = [&](std::size_t d) { return static_cast<std::size_t>(batch.document_starts[d]); };
    for (std::size_t d = 0; d < documents; ++d) {
      DocumentRole role = batch.document_roles[d];
      // Only the loss kto reads the estimate of the KL divergence.
      if (role == DocumentRole::kMismatched && terms_.weight_of(PreferenceType::kKto) == 0)
        role = DocumentRole::kNone;
      host.roles.push_back(static_cast<std::int32_t>(role));
      host.lengths.push_back(std::accumulate(batch.loss_mask.begin() + batch.document_starts[d],
                                             batch.loss_mask.begin() + batch.document_starts[d + 1], 0.0F));
      if (is_reward()) {
        // The sum of a document is -(loss * factor) over its tokens. These factors select the last token's
        // score.
        std::fill(&factors[begin(d)], factors.data() + begin(d + 1), 0.0F);
        if (role != DocumentRole::kNone) factors[begin(d + 1) - 1] = -1;
        host.margins.push_back(role == DocumentRole::kChosen ? static_cast<double>(batch.document_values[d])
                                                             : 0.0);
      }
      if (role == DocumentRole::kNone) std::fill(&factors[begin(d)], factors.data() + begin(d + 1), 0.0F);
      if (role == DocumentRole::kChosen) total(PreferenceTotal::kChosen) += 1;
      if (role == DocumentRole::kRejected) total(PreferenceTotal::kRejected) += 1;
      if (role != DocumentRole::kChosen || likelihood.empty()) continue;
      for (std::size_t t = begin(d); t < begin(d + 1); ++t) {
        // ORPO also learns the prompt. The last token of a document has a label only if the mask is 1 there.
        const bool prompt = terms_.form == PreferenceForm::kOrpo && t + 1 < begin(d + 1);
        likelihood[t] = prompt ? 1.0F : batch.loss_mask[t];
        total(PreferenceTotal::kLikelihoodTokens) += static_cast<double>(likelihood[t]);
      }
    }
    if (settings_.use_weighting) host.masks = held_->select(factors);
    const bool pairs = terms_.form != PreferenceForm::kKto;
    for (std::size_t d = 0; d < documents; ++d) {
      const bool chosen = batch.document_roles[d] == DocumentRole::kChosen;
      const bool rejected = batch.document_roles[d] == DocumentRole::kRejected;
      if (chosen || (rejected && !pairs)) total(PreferenceTotal::kUnits) += 1;
      if (!pairs || !chosen) continue;
      PRIMUS_CHECK("PreferenceRule::before_step",
                   d + 1 < documents && batch.document_roles[d + 1] == DocumentRole::kRejected);
      if (!settings_.ld_alpha) continue;
      const float shared = std::min(host.lengths[d], host.lengths[d + 1]);
      for (const std::size_t of : {d, d + 1}) {
        float answer = 0;  // number of answer tokens up to this one
        for (std::size_t t = begin(of); t < begin(of + 1); ++t) {
          answer += batch.loss_mask[t];
          if (answer > shared) factors[t] *= static_cast<float>(*settings_.ld_alpha);
        }
      }
    }
    host.factors = held_->select(factors);
    host.likelihood_factors = held_->select(likelihood);
    host.starts = held_->starts(batch.document_starts);
  }

  const PreferenceSettings settings_;
  const PreferenceTerms terms_;
  const std::vector<NamedMetric> metrics_;
  ReferenceModel reference_;
  std::array<std::int8_t, turbo::kPreferenceMetrics> places_{};
  std::int64_t all_microbatches_ = 1;
  bool has_losses_ = true;  // whether this rank has the last part of the model
  DeviceTables tables_;     // the tables of all microbatches of the step: a row for each
  // Results for one microbatch, and the numbers of the step.
  struct Sums {
    Tensor reference_losses;      // [tokens]
    Tensor answers, likelihoods;  // [documents] fp64
    Tensor confidences;           // [documents] fp64; only with weighted pairs
    Tensor slopes;                // [documents, 2]
    Tensor totals;                // [kPreferenceTotals] fp64
  } sums_;
  std::optional<HeldTokens> held_;
  std::vector<HostTables> hosts_;
  std::array<double, turbo::kPreferenceTotals> total_{};
  std::unique_ptr<Event> copied_;
};

}  // namespace

bool compares_with_reference(const PreferenceSettings& settings) {
  const bool compares =
      settings.method == PreferenceMethod::kDpo || settings.method == PreferenceMethod::kKto;
  return compares && !settings.reference_free;
}

void check_preferences(const PreferenceSettings& s) {
  const std::vector<TypeName> types = chosen_types(s);
  const auto has = [&](PreferenceType type) {
    return std::ranges::find(types, type, &TypeName::type) != types.end();
  };
  if (s.method != PreferenceMethod::kDpo && types.size() > 1)
    throw invalid(fmt::format("{} loss types are given, but this method computes one", types.size()));
  if (!s.loss_weights.empty() && s.loss_weights.size() != types.size()) {
    throw invalid(fmt::format("{} loss types have {} weights", types.size(), s.loss_weights.size()),
                  "give one weight for each loss type");
  }
  find_name(std::span<const DivergenceName>(kDivergences), s.f_divergence_type, "f_divergence_type");
  if (s.beta == 0) {
    throw invalid("beta is 0, but must be a number above 0",
                  "a small beta, for example 0.01, lets the model move far from the reference model");
  }
  require(std::isfinite(s.beta) && s.beta > 0, "beta", s.beta, "a number above 0");
  require(s.label_smoothing >= 0 && s.label_smoothing < 1, "label_smoothing", s.label_smoothing, "in [0, 1)");
  if (s.method == PreferenceMethod::kDpo && has(PreferenceType::kRobust))
    require(s.label_smoothing < 0.5, "label_smoothing", s.label_smoothing, "below 0.5 for robust");
  if (s.method == PreferenceMethod::kDpo && has(PreferenceType::kExoPair))
    require(s.label_smoothing > 0, "label_smoothing", s.label_smoothing,
            "above 0 for exo_pair, whose loss is infinite without it; its authors use 0.001");
  require(s.discopop_tau > 0, "discopop_tau", s.discopop_tau, "above 0");
  if (s.ld_alpha) require(*s.ld_alpha >= 0 && *s.ld_alpha <= 1, "ld_alpha", *s.ld_alpha, "in [0, 1]");
  if (s.ld_alpha && s.method != PreferenceMethod::kDpo)
    throw invalid("ld_alpha is a setting of DPO", "remove ld_alpha");
  require(std::isfinite(s.center_rewards_coefficient) && s.center_rewards_coefficient >= 0,
          "center_rewards_coefficient", s.center_rewards_coefficient, "a number of at least 0");
  if (s.use_weighting && s.method != PreferenceMethod::kDpo)
    throw invalid("use_weighting is a setting of DPO", "remove use_weighting");
  if (s.use_weighting && has(PreferenceType::kLikelihood)) {
    throw invalid("use_weighting weighs pairs, but loss_type sft is a mean over tokens",
                  "remove sft from loss_type, or set use_weighting to false");
  }
}

MakeLossRule preference_rule(const PreferenceSettings& settings, ReferenceWeights reference) {
  check_preferences(settings);
  return [settings, load = std::move(reference)] { return std::make_unique<PreferenceRule>(settings, load); };
}

}  // namespace primus
