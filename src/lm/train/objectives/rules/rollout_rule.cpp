#include "lm/train/objectives/rules/rollout_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/terminal/terminal.h"
#include "lm/train/objectives/rollouts/answer_generator.h"
#include "lm/train/objectives/rollouts/answer_scoring.h"
#include "lm/train/objectives/rollouts/answer_table.h"
#include "lm/train/objectives/rollouts/answers_ahead.h"
#include "lm/train/objectives/rollouts/dynamic_sampling.h"
#include "lm/train/objectives/rollouts/episode_generator.h"
#include "lm/train/objectives/rollouts/kept_answers.h"
#include "lm/train/objectives/rollouts/missing_rewards.h"
#include "lm/train/objectives/rollouts/rollouts.h"
#include "lm/train/objectives/rollouts/saved_answers.h"
#include "lm/train/objectives/rules/answer_divergences.h"

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
    PRIMUS_CHECK("RolloutRule::connect",
                 std::ssize(source.rewards) == settings_.functions &&
                     (settings_.sampling_attempts == 0 || source.prompt_at) &&
                     (settings_.ahead.batches == 0 || (source.prompt_at && source.make_rewards)) &&
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
    data_.count = rank.mesh().data_ranks();
    data_.own = rank.mesh().data_rank();
    answers_ = rows_.count() * data_.count;
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
    if (settings_.ahead.batches > 0)
      ahead_.emplace(AnswersAhead::Place{.sequence = rows_.sequence,
                                         .vocab = session.settings().model.vocab,
                                         .answers = answers_,
                                         .functions = settings_.functions,
                                         .ahead = settings_.ahead.batches,
                                         .period = period(),
                                         .numbers = numbers(),
                                         .tells = tells_,
                                         .episodes = episodes_.has_value(),
                                         .sampled_is_old = settings_.ahead.sampled_is_old});
    if (period() > 1) {
      kept_.emplace(session, KeptAnswers::Place{.rows = rows_,
                                                .answers = answers_,
                                                .columns = table_->columns(),
                                                .numbers = numbers(),
                                                .writes = tells_,
                                                .estimates = has_estimates()});
    }
    if (settings_.sampling_attempts > 0) {
      PRIMUS_CHECK("RolloutRule::prepare", answers_ % settings_.num_generations == 0);
      sampling_.emplace(
          DynamicSampling::Settings{.groups = answers_ / settings_.num_generations,
                                    .attempts = settings_.sampling_attempts,
                                    .iterations = settings_.iterations,
                                    .writes = is_first(),
                                    .warn = [this](const std::string& text) { warn_once(text); }});
    }
    if (settings_.divergences) divergences_.emplace(session);
  }

  void before_step(const BeforeStep& step) override {
    if (step.session.rank().measuring()) {
      measure(step.session);
    } else if (const std::span<const Rollout> old = answers_of_earlier_step(step.step); !old.empty()) {
      learn(step, old, table_->results());
    } else if (ahead_) {
      learn_from_oldest(step);
    } else {
      generate_answers(step);
    }
    inner_->before_step(computed(step));
  }

  std::vector<TensorSource> state(TrainingSession& session, std::int64_t done) override {
    std::vector<TensorSource> sources = inner_->state(session, done);
    if (sampling_) sources.push_back(sampling_->state(done));
    scoring_.models().add_state(session, sources);
    if (ahead_) std::ranges::move(ahead_->state(done), std::back_inserter(sources));
    if (!kept_ || done % period() == 0) return sources;
    for (TensorSource& source : kept_->state(table_->values())) sources.push_back(std::move(source));
    return sources;
  }

  std::string restore(TrainingSession& session, const CheckpointReader& checkpoint) override {
    std::string warning = inner_->restore(session, checkpoint);
    const std::string changed = scoring_.models().restore(checkpoint);
    if (!changed.empty()) warning += (warning.empty() ? "" : ". ") + changed;
    if (sampling_) sampling_->restore(checkpoint);
    if (ahead_) ahead_->restore(checkpoint);
    if (!kept_ || checkpoint.iteration() % period() == 0) return warning;
    std::vector<double> saved = kept_->restore(checkpoint);
    if (!saved.empty()) {
      table_->values() = std::move(saved);
      const std::int64_t number = table_->first_too_long(rows_.sequence + (has_estimates() ? 0 : 1));
      if (number >= 0) throw impossible_answer(checkpoint, number);
      return warning;
    }
    return fmt::format(
        "{} does not contain the answers of its last step in the form that this run needs: the run generates "
        "new answers before it has taken num_iterations steps for the old ones",
        checkpoint.folder().string());
  }

 private:
  // Returns whether this rank reports values that all ranks have.
  bool is_first() const { return tells_ && data_.own == 0; }
  void warn_once(const std::string& text) const {
    if (is_first() && source_.warn) source_.warn(text);
  }
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
    for (int i = 0; i < 2; ++i) generator_->leave_if_asked();
    if (divergences_) divergences_->measure(rows_.microbatches);
    if (kept_) kept_->answers();
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
    for (std::int64_t g = 0; g < answers_ / settings_.num_generations; ++g)
      take_prompt(attempt, g, sampling_->take());
    return attempt;
  }

  // Gives the prompt with this number in the order of the run to a group.
  void take_prompt(Attempt& attempt, std::int64_t group, std::int64_t number) {
    const std::int64_t record = source_.prompt_at(number);
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
    for (const std::int64_t group : again) take_prompt(attempt, group, sampling_->take());
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
      check_rewards(step.step, own, all, rewards);
    } while (attempt_again(attempt, all));
    if (sampling_) sampling_->finish();
    learn_from_new(step, std::move(own), rewards, all);
  }

  // Warns about missing rewards, or ends the run.
  void check_rewards(std::int64_t step, std::span<const Rollout> own, const Results& all,
                     std::span<const std::vector<Reward>> rewards) {
    scoring_.warn_of_failures(step, *table_, numbers(), tells_, own, rewards, missing_);
    if (all.unrewarded < answers_) {
      missing_.found();
    } else if (!sampling_ || step == 1) {
      missing_.none(step, answers_, is_first() ? source_.warn : nullptr);
    }
  }

  // Learns from answers for the first time. The table contains their results.
  void learn_from_new(const BeforeStep& step, std::vector<Rollout> own,
                      std::span<const std::vector<Reward>> rewards, const Results& all) {
    if (is_first()) examples_ = scoring_.examples(step.step, own, rewards);
    count_filled(all_rows());
    if (has_estimates()) add_estimates(step, own, all);
    if (divergences_ && !ahead_) gather_divergences(step.session, own, step.batches);
    learn(step, own, all);
    const auto add = [this](const char* name, double value) { metrics_.emplace_back(name, value); };
    if (!ahead_ || work_.generating > 0) {
      add("rollout/seconds", work_.generating);
      add("rollout/tokens_per_second", work_.tokens / std::max(work_.generating, 1e-9));
    }
    add("rollout/reward_seconds", work_.scoring);
    if (ahead_) {
      add("rollout/reward_wait_seconds", work_.waiting_for_rewards);
      add("rollout/staleness", static_cast<double>(step.step - 1 - work_.version));
    }
    if (episodes_) add("rollout/environment_seconds", work_.waiting);
    scoring_.add_retries(*table_, metrics_);
    if (sampling_) std::ranges::copy(sampling_->metrics(), std::back_inserter(metrics_));
    if (kept_) kept_->keep(std::move(own), filled_);
  }

  // Generates the answers of a batch for later steps, with the current weights.
  void generate_ahead(const BeforeStep& step, std::int64_t number) {
    const std::int64_t groups = answers_ / settings_.num_generations;
    Attempt attempt{.generates = std::vector<bool>(static_cast<std::size_t>(answers_), true),
                    .records = std::vector<std::int64_t>(static_cast<std::size_t>(answers_))};
    for (std::int64_t g = 0; g < groups; ++g) take_prompt(attempt, g, (number - 1) * groups + g);
    AnswersAhead::Batch batch{.number = number, .version = step.step - 1, .own = {}};
    batch.own.resize(static_cast<std::size_t>(rows_.count()));
    const double began = steady_seconds();
    generate(ahead_->first_step_of(number), attempt, batch.own);
    work_.generating += steady_seconds() - began;
    if (divergences_) {
      gather_results(step.session, batch.own, {});
      count_filled(all_rows());
      std::vector<data::Batch> batches(static_cast<std::size_t>(rows_.microbatches));
      batch.divergences = divergences_of(batch.own, batches);
    }
    ahead_->add(std::move(batch));
    ahead_->ask(scoring_, source_.make_rewards);
  }

  // Generates answers for later steps, waits for the rewards of the step's answers, and learns from them.
  void learn_from_oldest(const BeforeStep& step) {
    const std::int64_t number = ahead_->batch_of(step.step);
    std::int64_t last = number + settings_.ahead.batches;
    if (source_.last_step >= step.step) last = std::min(last, ahead_->batch_of(source_.last_step));
    work_ = {};
    ahead_->forget_before(number);
    ahead_->ask(scoring_, source_.make_rewards);  // for batches of a checkpoint
    if (step.step > 1 && !ahead_->find(number))
      warn_once("step " + std::to_string(step.step) +
                ": the checkpoint has no answers for this step that fit the settings, so the step generates "
                "them (max_staleness)");
    for (std::int64_t n = number; n <= last; ++n)
      if (!ahead_->find(n)) generate_ahead(step, n);
    AnswersAhead::Batch& batch = *ahead_->find(number);
    const double began = steady_seconds();
    while (!ahead_->wait(batch, std::chrono::milliseconds(50)) && !step.session.stop_requested()) continue;
    generator_->leave_if_asked();
    work_.waiting_for_rewards = steady_seconds() - began;
    work_.scoring = ahead_->seconds(batch);
    work_.version = batch.version;
    scoring_.begin_step();
    std::vector<std::vector<Reward>> rewards;
    const std::vector<std::size_t> rows = begin_scoring(batch.own, nullptr, rewards);
    scoring_.finish(step.session, batch.own, rows, tells_, batch.scored, missing_, rewards);
    gather_results(step.session, batch.own, rewards, batch.divergences);
    const Results all = table_->results();
    check_rewards(step.step, batch.own, all, rewards);
    learn_from_new(step, batch.own, rewards, all);  // the step may be stopped, so the batch stays
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
      values.push_back(advantages.values[static_cast<std::size_t>(number_of(i, data_.own))]);
    pack_rollouts(own.subspan(static_cast<std::size_t>(rows.begin), values.size()), values, rows_,
                  settings_.mask_truncated_completions, step.batches);
  }

  // Adds the estimates of PPO to the answers of this data rank.
  void add_estimates(const BeforeStep& step, std::span<Rollout> own, const Results& all) {
    pack(step, own, advantages_of(all), all_rows());
    const std::span<data::Batch> batches = step.batches.first(static_cast<std::size_t>(filled_));
    settings_.estimate(*inner_, step.session, batches);
    read_estimates(batches, rows_, own);
  }

  // Returns which of the step's answers is in row `row` of a data rank.
  std::int64_t number_of(std::int64_t row, int data_rank) const {
    return number_of_answer(row, rows_, data_.count, data_rank);
  }

  // Returns the numbers of this data rank's answers, in the order of its rows.
  std::vector<std::int64_t> numbers() const {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < rows_.count(); ++i) all.push_back(number_of(i, data_.own));
    return all;
  }

  // Returns the record of the prompt of each answer of the step, on all data ranks.
  std::vector<std::int64_t> gather_records(TrainingSession& session, std::span<const data::Batch> batches) {
    table_->clear();
    for (std::int64_t i = 0; i < rows_.count(); ++i) {
      table_->at(number_of(i, data_.own), AnswerTable::kRecord) =
          static_cast<double>(record_of_row(batches, rows_, i) + 1);
    }
    table_->exchange(session);
    std::vector<std::int64_t> records;
    for (std::int64_t a = 0; a < answers_; ++a)
      records.push_back(static_cast<std::int64_t>(table_->at(a, AnswerTable::kRecord)) - 1);
    return records;
  }

  // Generates the answers of an attempt. Writes this data rank's answers to `own`, in the order of its rows.
  void generate(std::int64_t step, const Attempt& attempt, std::span<Rollout> own) {
    const bool together = generator_->together();
    std::vector<Rollout> all(static_cast<std::size_t>(answers_));
    std::vector<AnswerGenerator::Job> jobs;
    for (std::int64_t i = 0; i < (together ? answers_ : rows_.count()); ++i) {
      const std::int64_t answer = together ? i : number_of(i, data_.own);
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
    generator_->leave_if_asked();
    work_.tokens += work.tokens;
    work_.waiting += work.waiting;
    for (std::int64_t i = 0; i < rows_.count(); ++i) {
      const auto number = static_cast<std::size_t>(number_of(i, data_.own));
      if (attempt.generates[number]) own[static_cast<std::size_t>(i)] = std::move(all[number]);
    }
  }

  // Scores the answers of an attempt. `rewards`: for each function, the rewards of this data rank's rows;
  // empty on ranks that do not call the functions.
  void score(TrainingSession& session, const Attempt& attempt, std::span<const Rollout> own,
             std::vector<std::vector<Reward>>& rewards) {
    const std::vector<std::size_t> rows = begin_scoring(own, &attempt, rewards);
    if (tells_ || scoring_.models().size() > 0) scoring_.score(session, own, rows, tells_, missing_, rewards);
    generator_->leave_if_asked();
  }

  // Returns the rows that functions score, and gives the other answers of the attempt no rewards. `attempt`:
  // null for all answers.
  std::vector<std::size_t> begin_scoring(std::span<const Rollout> own, const Attempt* attempt,
                                         std::vector<std::vector<Reward>>& rewards) {
    missing_.begin();
    if (tells_) rewards.resize(source_.rewards.size(), std::vector<Reward>(own.size()));
    std::vector<std::size_t> rows;
    for (std::size_t i = 0; i < own.size(); ++i) {
      const std::int64_t number = number_of(static_cast<std::int64_t>(i), data_.own);
      if (attempt && !attempt->generates[static_cast<std::size_t>(number)]) continue;
      if (own[i].episode && own[i].episode->failed) {
        // Functions would score a conversation that the environment has broken off.
        const std::string& problem = own[i].episode->reward.problem;
        for (std::vector<Reward>& of_function : rewards) of_function[i] = {.value = {}, .problem = problem};
        if (!missing_.has_problem()) missing_.add(problem);
        continue;
      }
      rows.push_back(i);
    }
    return rows;
  }

  // Collects lengths and rewards of all data ranks in the table.
  void gather_results(TrainingSession& session, std::span<const Rollout> own,
                      std::span<const std::vector<Reward>> rewards,
                      std::span<const double> divergences = {}) {
    table_->clear();
    for (std::int64_t i = 0; i < rows_.count(); ++i) {
      const Rollout& rollout = own[static_cast<std::size_t>(i)];
      const std::int64_t answer = number_of(i, data_.own);
      table_->at(answer, AnswerTable::kRecord) = static_cast<double>(rollout.record + 1);
      table_->at(answer, AnswerTable::kPrompt) = static_cast<double>(rollout.prompt.size());
      table_->at(answer, AnswerTable::kLength) = static_cast<double>(rollout.answer.size());
      table_->at(answer, AnswerTable::kFinished) = rollout.finished ? 1 : 0;
      if (!divergences.empty())
        table_->at(answer, AnswerTable::kDivergence) = divergences[static_cast<std::size_t>(i)];
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

  // Returns the divergences of this data rank's answers. Writes the answers into `batches`.
  std::vector<double> divergences_of(std::span<const Rollout> own, std::span<data::Batch> batches) {
    const std::vector<double> zeros(own.size(), 0);
    pack_rollouts(own, zeros, rows_, settings_.mask_truncated_completions, batches);
    return divergences_->compute(own, batches.first(static_cast<std::size_t>(filled_)), rows_.sequence);
  }

  // Computes the divergences of all answers of the step, and writes them into the table.
  void gather_divergences(TrainingSession& session, std::span<const Rollout> own,
                          std::span<data::Batch> batches) {
    const std::vector<double> divergences = divergences_of(own, batches);
    table_->exchange(session, AnswerTable::kDivergence, numbers(), divergences);
  }

  // Sets filled_ to the largest number of microbatches that the answers of these rows fill on any data rank.
  void count_filled(RowRange rows) {
    filled_ = most_filled_microbatches(rows_, rows.begin, rows.end, data_.count, [this](std::int64_t answer) {
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
  struct DataRanks {
    int count = 1, own = 0;
  } data_;
  std::int64_t answers_ = 1;  // number of answers of a step on all data ranks
  bool tells_ = true;         // whether this rank calls the reward functions for its data rank
  std::optional<AnswerDivergences> divergences_;
  std::optional<AnswerGenerator> generator_;
  std::optional<EpisodeGenerator> episodes_;  // exists if settings_.max_turns is above 0
  std::optional<AnswerTable> table_;
  std::optional<AnswersAhead> ahead_;  // exists if answers are generated before their steps
  std::optional<KeptAnswers> kept_;    // exists if several steps learn from the same answers
  std::int64_t filled_ = 1;
  MissingRewards missing_;
  std::optional<DynamicSampling> sampling_;  // exists only with dynamic sampling
  // Work of the last generation of answers on this rank: seconds, and number of generated tokens.
  struct Work {
    double generating = 0, scoring = 0, tokens = 0, waiting = 0, waiting_for_rewards = 0;
    std::int64_t version = 0;  // with answers ahead: number of updates of the weights that generated them
  } work_;
  std::vector<std::pair<std::string, double>> metrics_;
  std::vector<GeneratedAnswer> examples_;
};

}  // namespace

MakeLossRule rollout_rule(const RolloutSettings& settings, MakeLossRule inner) {
  PRIMUS_CHECK("rollout_rule",
               settings.advantages && settings.functions > 0 && inner &&
                   (settings.sampling_attempts == 0 || !settings.divergences) && settings.parts > 0 &&
                   (settings.parts == 1 || settings.estimate) &&
                   (settings.ahead.batches == 0 || (!settings.estimate && settings.sampling_attempts == 0)));
  return [settings, inner = std::move(inner)] { return std::make_unique<Rollouts>(settings, inner()); };
}

}  // namespace primus
