#include "lm/train/objectives/rollout_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/terminal/terminal.h"
#include "lm/train/objectives/answer_generator.h"
#include "lm/train/objectives/answer_scoring.h"
#include "lm/train/objectives/answer_table.h"
#include "lm/train/objectives/dynamic_sampling.h"
#include "lm/train/objectives/episode_generator.h"
#include "lm/train/objectives/kept_answers.h"
#include "lm/train/objectives/missing_rewards.h"
#include "lm/train/objectives/rollouts.h"
#include "lm/train/objectives/token_log_probs.h"

namespace primus {
namespace {

class Rollouts final : public RolloutRule {
  using Results = AnswerTable::Results;

 public:
  Rollouts(RolloutSettings settings, std::unique_ptr<LossRule> inner)
      : settings_(std::move(settings)),
        inner_(std::move(inner)),
        scoring_(source_, settings_.reward_models) {}

  void connect(RolloutSource source) override {
    PRIMUS_CHECK("RolloutRule::connect", std::ssize(source.rewards) == settings_.functions &&
                                             (settings_.sampling_attempts == 0 || source.prompt_at) &&
                                             (settings_.max_turns == 0 || source.episodes.environment));
    source_ = std::move(source);
    scoring_.connect();
  }

  std::vector<FrozenModel> frozen_models(const ModelConfig& model) const override {
    std::vector<FrozenModel> all = inner_->frozen_models(model);
    std::ranges::move(scoring_.models().frozen_models(), std::back_inserter(all));
    return all;
  }
  std::optional<SecondModel> second_model(const ModelConfig& model) override {
    return inner_->second_model(model);
  }
  void load_weights(TrainingSession& session) override {
    inner_->load_weights(session);
    scoring_.models().load_weights(session);
  }
  std::vector<std::string> metrics() const override { return inner_->metrics(); }
  TokenNeeds needs() const override { return inner_->needs(); }
  void weigh(const TokenLosses& tokens) override {
    if (kept_) kept_->record(tokens);
    inner_->weigh(tokens);
  }
  std::optional<std::int64_t> filled_microbatches() const override { return filled_; }
  std::vector<GeneratedAnswer> take_answers() override { return std::exchange(examples_, {}); }

  std::vector<std::pair<std::string, double>> host_metrics() const override {
    std::vector<std::pair<std::string, double>> all = inner_->host_metrics();
    all.insert(all.end(), metrics_.begin(), metrics_.end());
    return all;
  }

  void prepare(TrainingSession& session) override {
    engine::Rank& rank = session.rank();
    const StepSettings& step = session.settings().step;
    rows_ = {.micro_batch = step.micro_batch, .sequence = step.sequence, .microbatches = step.microbatches};
    data_ranks_ = rank.mesh().data_ranks();
    data_rank_ = rank.mesh().data_rank();
    answers_ = rows_.count() * data_ranks_;
    const engine::MeshPlace& place = rank.mesh().place();
    tells_ = place.tensor == 0 && place.context == 0 && place.stage == 0;
    generator_.emplace(session);
    if (settings_.max_turns > 0) episodes_.emplace(session, *generator_);
    table_.emplace(rank, AnswerTable::Settings{.answers = answers_,
                                               .functions = settings_.functions,
                                               .episodes = episodes_.has_value(),
                                               .writes = tells_});
    inner_->prepare(session);
    scoring_.models().prepare(session);
    if (period() > 1) {
      KeptAnswers::Place kept{.rows = rows_,
                              .answers = answers_,
                              .columns = table_->columns(),
                              .numbers = {},
                              .writes = tells_,
                              .estimates = has_estimates()};
      for (std::int64_t i = 0; i < rows_.count(); ++i) kept.numbers.push_back(number_of(i, data_rank_));
      kept_.emplace(session, std::move(kept));
    }
    if (settings_.sampling_attempts > 0) {
      PRIMUS_CHECK("RolloutRule::prepare", answers_ % settings_.num_generations == 0);
      const bool first = tells_ && data_rank_ == 0;
      sampling_.emplace(DynamicSampling::Settings{.groups = answers_ / settings_.num_generations,
                                                  .attempts = settings_.sampling_attempts,
                                                  .iterations = settings_.iterations,
                                                  .writes = first,
                                                  .warn = [this, first](const std::string& text) {
                                                    if (first && source_.warn) source_.warn(text);
                                                  }});
    }
    if (!settings_.divergences) return;
    models_.current.emplace(session, ScoredModel{.model = session.trained()});
    models_.reference.emplace(session, reference_of(session));
  }

  void before_step(const BeforeStep& step) override {
    if (step.session.rank().measuring()) {
      measure(step.session);
    } else if (const std::span<const Rollout> old = answers_of_earlier_step(step.step); !old.empty()) {
      learn(step, old, table_->results());
    } else {
      generate_answers(step);
    }
    inner_->before_step(computed(step));
  }

  std::vector<TensorSource> state(TrainingSession& session, std::int64_t done) override {
    std::vector<TensorSource> sources = inner_->state(session, done);
    if (sampling_) sources.push_back(sampling_->state(done));
    scoring_.models().add_state(session, sources);
    if (!kept_ || done % period() == 0) return sources;
    for (TensorSource& source : kept_->state(table_->values())) sources.push_back(std::move(source));
    return sources;
  }

  std::string restore(TrainingSession& session, const CheckpointReader& checkpoint) override {
    std::string warning = inner_->restore(session, checkpoint);
    const std::string changed = scoring_.models().restore(checkpoint);
    if (!changed.empty()) warning += (warning.empty() ? "" : ". ") + changed;
    if (sampling_) sampling_->restore(checkpoint);
    if (!kept_ || checkpoint.iteration() % period() == 0) return warning;
    std::vector<double> saved = kept_->restore(checkpoint);
    if (!saved.empty()) {
      table_->values() = std::move(saved);
      check_lengths(checkpoint);
      return warning;
    }
    return fmt::format(
        "{} does not contain the answers of its last step in the form that this run needs: the run generates "
        "new answers before it has taken num_iterations steps for the old ones",
        checkpoint.folder().string());
  }

 private:
  bool has_estimates() const { return static_cast<bool>(settings_.estimate); }
  // Returns the number of consecutive steps that learn from the same answers.
  std::int64_t period() const { return settings_.iterations * settings_.parts; }
  // The rows of a data rank from whose answers a step learns.
  struct RowRange {
    std::int64_t begin = 0, end = 0;
  };
  RowRange all_rows() const { return {0, rows_.count()}; }
  RowRange rows_of(std::int64_t step) const {
    const std::int64_t part = (step - 1) % settings_.parts, rows = rows_.count() / settings_.parts;
    return {part * rows, (part + 1) * rows};
  }

  // Returns the arguments for the inner rule: without the microbatches that the step skips, so that other
  // models do not read these microbatches. Rules with estimates expect all microbatches.
  BeforeStep computed(const BeforeStep& step) const {
    BeforeStep inner = step;
    if (!step.session.rank().measuring() && !has_estimates() && step.session.step().may_skip())
      inner.batches = step.batches.first(static_cast<std::size_t>(filled_));
    return inner;
  }

  // Makes the calls of a step on a rank that measures memory.
  void measure(TrainingSession& session) {
    scoring_.models().measure(session);
    for (int i = 0; i < (settings_.divergences ? 3 : 2); ++i) table_->exchange(session);
    for (std::int64_t i = 0; settings_.divergences && i < rows_.microbatches; ++i) {
      models_.current->compute({});
      models_.reference->compute({});
    }
    if (kept_) kept_->answers();
  }

  // Throws if a table of a checkpoint has lengths that do not fit into a row.
  void check_lengths(const CheckpointReader& checkpoint) {
    for (std::int64_t a = 0; a < answers_; ++a) {
      const double prompt = table_->at(a, AnswerTable::kPrompt), answer = table_->at(a, AnswerTable::kLength);
      const double inputs = prompt + answer - (has_estimates() ? 0 : 1);
      if (prompt >= 1 && answer >= 1 && inputs <= static_cast<double>(rows_.sequence)) continue;
      throw impossible_answer(checkpoint, a);
    }
  }

  // Returns the answers of an earlier step, if `step` learns from them again.
  std::span<const Rollout> answers_of_earlier_step(std::int64_t step) {
    if (!kept_ || (step - 1) % period() == 0) return {};
    return kept_->answers();
  }

  // A step generates its answers in one attempt. Dynamic sampling may need several attempts.
  struct Attempt {
    std::int64_t number = 0;
    std::vector<bool> generates;        // [answers] whether the attempt generates this answer
    std::vector<std::int64_t> records;  // [answers] the records of the prompts
  };

  // Returns the attempt that generates all answers of the step.
  Attempt first_attempt(const BeforeStep& step) {
    Attempt attempt{.generates = std::vector<bool>(static_cast<std::size_t>(answers_), true)};
    if (!sampling_) {
      attempt.records = gather_records(step.session, step.batches);
      return attempt;
    }
    table_->clear();
    attempt.records.resize(static_cast<std::size_t>(answers_));
    sampling_->begin(step.step);
    for (std::int64_t g = 0; g < answers_ / settings_.num_generations; ++g) take_prompt(attempt, g);
    return attempt;
  }

  // Gives the next prompt to a group.
  void take_prompt(Attempt& attempt, std::int64_t group) {
    const std::int64_t record = source_.prompt_at(sampling_->take());
    for (std::int64_t i = 0; i < settings_.num_generations; ++i) {
      const auto answer = static_cast<std::size_t>(group * settings_.num_generations + i);
      attempt.records[answer] = record;
      attempt.generates[answer] = true;
    }
  }

  // Chooses the answers that dynamic sampling generates again. Returns whether there are any.
  bool attempt_again(Attempt& attempt, const Results& all) {
    if (!sampling_) return false;
    std::vector<std::int64_t> groups;
    std::vector<std::optional<double>> rewards;
    std::int64_t rewarded = 0;
    const auto functions = static_cast<std::size_t>(settings_.functions);
    for (std::size_t a = 0; a < attempt.generates.size(); ++a) {
      if (!attempt.generates[a]) continue;
      const auto size = static_cast<std::size_t>(settings_.num_generations);
      if (a % size == 0) groups.push_back(static_cast<std::int64_t>(a / size));
      const std::span<const std::optional<double>> one =
          std::span(all.rewards).subspan(a * functions, functions);
      rewards.insert(rewards.end(), one.begin(), one.end());
      if (std::ranges::any_of(one, [](const std::optional<double>& r) { return r.has_value(); })) ++rewarded;
    }
    const std::vector<std::int64_t> again = sampling_->discard(
        groups, settings_.advantages(rewards, settings_.functions, {}), rewarded, missing_.why());
    ++attempt.number;
    attempt.generates.assign(attempt.generates.size(), false);
    for (const std::int64_t group : again) take_prompt(attempt, group);
    return !again.empty();
  }

  // Generates and scores the answers of the step.
  void generate_answers(const BeforeStep& step) {
    TrainingSession& session = step.session;
    Attempt attempt = first_attempt(step);
    std::vector<Rollout> own(static_cast<std::size_t>(rows_.count()));
    std::vector<std::vector<Reward>> rewards;
    Results all;
    work_ = {};
    scoring_.begin_step();
    do {
      const double began = steady_seconds();
      generate(step.step, attempt, own);
      const double generated = steady_seconds();
      score(session, attempt, own, rewards);
      work_.generating += generated - began;
      work_.scoring += steady_seconds() - generated;
      gather_results(session, own, rewards);
      all = table_->results();
      warn_of_failures(step.step, all, rewards);
      if (all.unrewarded < answers_) {
        missing_.found();
      } else if (!sampling_ || step.step == 1) {
        missing_.none(step.step, answers_, tells_ && data_rank_ == 0 ? source_.warn : nullptr);
      }
    } while (attempt_again(attempt, all));
    if (sampling_) sampling_->finish();
    if (tells_ && data_rank_ == 0) examples_ = scoring_.examples(step.step, own, rewards);
    count_filled(all_rows());
    if (has_estimates()) add_estimates(step, own, all);
    if (settings_.divergences) {
      const std::vector<double> zeros(own.size(), 0);
      pack_rollouts(own, zeros, rows_, settings_.mask_truncated_completions, step.batches);
      gather_divergences(session, own, step.batches);
    }
    learn(step, own, all);
    const auto add = [this](const char* name, double value) { metrics_.emplace_back(name, value); };
    add("rollout/seconds", work_.generating);
    add("rollout/tokens_per_second", work_.tokens / std::max(work_.generating, 1e-9));
    add("rollout/reward_seconds", work_.scoring);
    if (episodes_) add("rollout/environment_seconds", work_.waiting);
    for (std::size_t f = 0; f < source_.rewards.size(); ++f) {
      if (!source_.rewards[f]->take_retries()) continue;  // a function without repetitions
      double retries = 0;
      for (std::int64_t a = 0; a < answers_; ++a)
        retries += table_->at(a, static_cast<std::int64_t>(f), AnswerTable::kRetries);
      metrics_.emplace_back(fmt::format("rewards/{}/retries", scoring_.names()[f]), retries);
    }
    if (sampling_) std::ranges::copy(sampling_->metrics(), std::back_inserter(metrics_));
    if (kept_) kept_->keep(std::move(own), filled_);
  }

  // Writes the answers of this data rank into the microbatches, and computes the metrics of all answers.
  void learn(const BeforeStep& step, std::span<const Rollout> own, const Results& all) {
    const Advantages advantages = advantages_of(all);
    const RowRange rows = rows_of(step.step);
    count_filled(rows);
    pack(step, own, advantages, rows);
    metrics_ = table_->metrics(advantages, all, scoring_.names());
  }

  Advantages advantages_of(const Results& all) {
    std::vector<double> divergences;
    for (std::int64_t a = 0; settings_.divergences && a < answers_; ++a)
      divergences.push_back(table_->at(a, AnswerTable::kDivergence));
    Advantages advantages = settings_.advantages(all.rewards, settings_.functions, divergences);
    for (std::int64_t a = 0; has_estimates() && a < answers_; ++a) {
      if (table_->at(a, AnswerTable::kFinished) == 0)
        advantages.values[static_cast<std::size_t>(a)] -= settings_.missing_eos_penalty;
    }
    return advantages;
  }

  // Writes the answers of these rows into the microbatches.
  void pack(const BeforeStep& step, std::span<const Rollout> own, const Advantages& advantages,
            RowRange rows) {
    std::vector<double> values;
    for (std::int64_t i = rows.begin; i < rows.end; ++i)
      values.push_back(advantages.values[static_cast<std::size_t>(number_of(i, data_rank_))]);
    pack_rollouts(own.subspan(static_cast<std::size_t>(rows.begin), values.size()), values, rows_,
                  settings_.mask_truncated_completions, step.batches);
  }

  // Adds the estimates of PPO to the answers of this data rank.
  void add_estimates(const BeforeStep& step, std::span<Rollout> own, const Results& all) {
    pack(step, own, advantages_of(all), all_rows());
    const std::span<data::Batch> batches = step.batches.first(static_cast<std::size_t>(filled_));
    settings_.estimate(*inner_, step.session, batches);
    std::vector<std::int64_t> lengths;
    for (const Rollout& rollout : own) lengths.push_back(rollout.inputs());
    const std::vector<std::int64_t> begins = first_fit(lengths, rows_.sequence);
    const std::int64_t tokens = rows_.micro_batch * rows_.sequence;
    for (std::size_t i = 0; i < own.size(); ++i) {
      const data::Batch& batch = batches[static_cast<std::size_t>(begins[i] / tokens)];
      const std::int64_t first = begins[i] % tokens + std::ssize(own[i].prompt) - 1;
      const auto part = [&](const std::vector<float>& from, std::int64_t count) {
        return std::vector<float>(from.begin() + first, from.begin() + first + count);
      };
      const std::int64_t count = std::ssize(own[i].answer);
      own[i].old_log_probs = part(batch.old_log_probs, count);
      own[i].values = part(batch.values, count + 1);
      own[i].advantages = part(batch.token_advantages, count + 1);
      own[i].returns = part(batch.returns, count + 1);
    }
  }

  // Returns which of the step's answers is in row `row` of a data rank.
  std::int64_t number_of(std::int64_t row, int data_rank) const {
    return number_of_answer(row, rows_, data_ranks_, data_rank);
  }

  // Returns the record of the prompt of each answer of the step, on all data ranks.
  std::vector<std::int64_t> gather_records(TrainingSession& session, std::span<const data::Batch> batches) {
    table_->clear();
    for (std::int64_t i = 0; i < rows_.count(); ++i) {
      table_->at(number_of(i, data_rank_), AnswerTable::kRecord) =
          static_cast<double>(record_of_row(batches, rows_, i) + 1);
    }
    table_->exchange(session);
    std::vector<std::int64_t> records;
    for (std::int64_t a = 0; a < answers_; ++a)
      records.push_back(static_cast<std::int64_t>(table_->at(a, AnswerTable::kRecord)) - 1);
    return records;
  }

  // Generates the answers of an attempt. Writes those of this data rank to `own`, in the order of its rows.
  void generate(std::int64_t step, const Attempt& attempt, std::span<Rollout> own) {
    const bool together = generator_->together();
    std::vector<Rollout> all(static_cast<std::size_t>(answers_));
    std::vector<AnswerGenerator::Job> jobs;
    for (std::int64_t i = 0; i < (together ? answers_ : rows_.count()); ++i) {
      const std::int64_t answer = together ? i : number_of(i, data_rank_);
      const auto number = static_cast<std::size_t>(answer);
      if (!attempt.generates[number]) continue;
      all[number].record = attempt.records[number];
      all[number].last_is_input = has_estimates();
      const std::span<const std::int32_t> prompt = source_.prompt(all[number].record);
      all[number].prompt.assign(prompt.begin(), prompt.end());
      jobs.push_back(
          {.rollout = &all[number],
           .seed = seed_of_answer(settings_.sampling.seed, step, answer + attempt.number * answers_)});
    }
    const GenerateSettings generation{.sampling = settings_.sampling,
                                      .max_tokens = settings_.max_completion_length,
                                      .vocab = source_.vocab,
                                      .stop_ids = source_.stop_ids,
                                      .log_probs = true};
    const EpisodeGenerator::Work work =
        episodes_ ? episodes_->generate(generation, jobs, source_.episodes, settings_.max_turns)
                  : EpisodeGenerator::Work{.tokens = generator_->generate(generation, jobs)};
    work_.tokens += work.tokens;
    work_.waiting += work.waiting;
    for (std::int64_t i = 0; i < rows_.count(); ++i) {
      const auto number = static_cast<std::size_t>(number_of(i, data_rank_));
      if (attempt.generates[number]) own[static_cast<std::size_t>(i)] = std::move(all[number]);
    }
  }

  // Scores the answers of an attempt. `rewards`: for each function, the rewards of this data rank's rows;
  // empty on ranks that do not call the functions.
  void score(TrainingSession& session, const Attempt& attempt, std::span<const Rollout> own,
             std::vector<std::vector<Reward>>& rewards) {
    missing_.begin();
    if (tells_) rewards.resize(source_.rewards.size(), std::vector<Reward>(own.size()));
    std::vector<std::size_t> rows;
    for (std::size_t i = 0; i < own.size(); ++i) {
      const std::int64_t number = number_of(static_cast<std::int64_t>(i), data_rank_);
      if (!attempt.generates[static_cast<std::size_t>(number)]) continue;
      if (own[i].episode && own[i].episode->failed) {
        // Functions would score a conversation that the environment has broken off.
        const std::string& problem = own[i].episode->reward.problem;
        for (std::vector<Reward>& of_function : rewards) of_function[i] = {.value = {}, .problem = problem};
        if (!missing_.has_problem()) missing_.add(problem);
        continue;
      }
      rows.push_back(i);
    }
    if (tells_ || scoring_.models().size() > 0) scoring_.score(session, own, rows, tells_, missing_, rewards);
  }

  // Collects lengths and rewards of all data ranks in the table.
  void gather_results(TrainingSession& session, std::span<const Rollout> own,
                      std::span<const std::vector<Reward>> rewards) {
    table_->clear();
    for (std::int64_t i = 0; i < rows_.count(); ++i) {
      const Rollout& rollout = own[static_cast<std::size_t>(i)];
      const std::int64_t answer = number_of(i, data_rank_);
      table_->at(answer, AnswerTable::kRecord) = static_cast<double>(rollout.record + 1);
      table_->at(answer, AnswerTable::kPrompt) = static_cast<double>(rollout.prompt.size());
      table_->at(answer, AnswerTable::kLength) = static_cast<double>(rollout.answer.size());
      table_->at(answer, AnswerTable::kFinished) = rollout.finished ? 1 : 0;
      if (rollout.episode) std::ranges::copy(episode_values(rollout), &table_->at(answer, kGenerated));
      for (std::size_t f = 0; f < rewards.size(); ++f) {
        const std::optional<double>& value = rewards[f][static_cast<std::size_t>(i)].value;
        const auto function = static_cast<std::int64_t>(f);
        table_->at(answer, function, AnswerTable::kHasReward) = value ? 1 : 0;
        table_->at(answer, function, AnswerTable::kReward) = value.value_or(0);
        if (i == 0)
          table_->at(answer, function, AnswerTable::kRetries) = static_cast<double>(scoring_.retries(f));
      }
    }
    table_->exchange(session);
  }

  // Warns once per function, in the first step in which it could not score an answer. The rank of the first
  // such answer writes the warning, because only this rank has the reason.
  void warn_of_failures(std::int64_t step, const Results& all, std::span<const std::vector<Reward>> rewards) {
    const std::vector<std::string>& names = scoring_.names();
    for (std::size_t f = 0; f < names.size(); ++f) {
      if (all.without[f] == 0 || !missing_.is_first(f)) continue;
      std::int64_t first = 0;
      while (table_->at(first, static_cast<std::int64_t>(f), AnswerTable::kHasReward) != 0) ++first;
      for (std::int64_t i = 0; tells_ && source_.warn && i < rows_.count(); ++i) {
        if (number_of(i, data_rank_) != first) continue;
        source_.warn(fmt::format(
            "step {}: the reward function {} gave no reward to {} of {} answers, for example because {}. The "
            "sums of these answers lack this function. The metric rewards/{}/without is the share of such "
            "answers",
            step, names[f], all.without[f], answers_, rewards[f][static_cast<std::size_t>(i)].problem,
            names[f]));
      }
    }
  }

  // Computes the divergences of all answers of the step from the reference model, and writes them into the
  // table. `batches` contain the answers of this rank.
  void gather_divergences(TrainingSession& session, std::span<const Rollout> own,
                          std::span<const data::Batch> batches) {
    std::vector<double> sums;  // for each token of the filled microbatches: the sum up to this token
    double sum = 0;
    for (const data::Batch& batch : batches.first(static_cast<std::size_t>(filled_))) {
      const std::vector<float> current = models_.current->compute(batch),
                               reference = models_.reference->compute(batch);
      for (std::size_t t = 0; t < current.size(); ++t) {
        sums.push_back(sum);
        sum += static_cast<double>(current[t]) - static_cast<double>(reference[t]);
      }
    }
    sums.push_back(sum);
    std::vector<std::int64_t> lengths;
    for (const Rollout& rollout : own) lengths.push_back(rollout.inputs());
    const std::vector<std::int64_t> begins = first_fit(lengths, rows_.sequence);
    std::vector<double> table =
        table_->values();  // the other columns are complete, and must not be added again
    table_->clear();
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto begin = static_cast<std::size_t>(begins[i]);
      table_->at(number_of(static_cast<std::int64_t>(i), data_rank_), AnswerTable::kDivergence) =
          sums[begin + static_cast<std::size_t>(lengths[i])] - sums[begin];
    }
    table_->exchange(session);
    for (std::int64_t a = 0; a < answers_; ++a)
      table[static_cast<std::size_t>(a * table_->columns() + AnswerTable::kDivergence)] =
          table_->at(a, AnswerTable::kDivergence);
    table_->values() = std::move(table);
  }

  // Sets filled_ to the largest number of microbatches that the answers of these rows fill on any data rank.
  void count_filled(RowRange rows) {
    filled_ = most_filled_microbatches(rows_, rows.begin, rows.end, data_ranks_, [this](std::int64_t answer) {
      return static_cast<std::int64_t>(table_->at(answer, AnswerTable::kPrompt) +
                                       table_->at(answer, AnswerTable::kLength)) -
             (has_estimates() ? 0 : 1);
    });
  }

  const RolloutSettings settings_;
  const std::unique_ptr<LossRule> inner_;
  RolloutSource source_;
  AnswerScoring scoring_;
  RolloutRows rows_;
  int data_ranks_ = 1, data_rank_ = 0;
  std::int64_t answers_ = 1;  // number of answers of a step on all data ranks
  bool tells_ = true;         // whether this rank calls the reward functions for its data rank
  struct Models {
    std::optional<TokenLogProbs> current, reference;  // used only for divergences
  } models_;
  std::optional<AnswerGenerator> generator_;
  std::optional<EpisodeGenerator> episodes_;  // exists if settings_.max_turns is above 0
  std::optional<AnswerTable> table_;
  std::optional<KeptAnswers> kept_;  // exists if several steps learn from the same answers
  std::int64_t filled_ = 1;
  MissingRewards missing_;
  std::optional<DynamicSampling> sampling_;  // exists only with dynamic sampling
  // Work of the last generation of answers on this rank: seconds, and number of generated tokens.
  struct Work {
    double generating = 0, scoring = 0, tokens = 0, waiting = 0;
  } work_;
  std::vector<std::pair<std::string, double>> metrics_;
  std::vector<GeneratedAnswer> examples_;
};

}  // namespace

MakeLossRule rollout_rule(const RolloutSettings& settings, MakeLossRule inner) {
  PRIMUS_CHECK("rollout_rule", settings.advantages && settings.functions > 0 && inner &&
                                   (settings.sampling_attempts == 0 || !settings.divergences) &&
                                   settings.parts > 0 && (settings.parts == 1 || settings.estimate));
  return [settings, inner = std::move(inner)] { return std::make_unique<Rollouts>(settings, inner()); };
}

}  // namespace primus
