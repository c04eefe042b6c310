#include "lm/train/objectives/rules/own_answers_rule.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/random/random.h"
#include "base/terminal/terminal.h"
#include "lm/train/objectives/rollouts/answer_generator.h"
#include "lm/train/objectives/rollouts/rank_table.h"
#include "lm/train/objectives/rollouts/rollouts.h"
#include "lm/train/step/session.h"

namespace primus {
namespace {

class OwnAnswers final : public OwnAnswersRule {
  // Columns of the table: the record of the answer, the number of inputs with the prompt, the number of
  // tokens of the answer, whether it is complete, and its number of learned tokens.
  enum Column : std::int64_t { kRecord, kInputs, kLength, kFinished, kLearned, kColumns };

 public:
  OwnAnswers(const OwnAnswerSettings& settings, std::unique_ptr<LossRule> inner)
      : settings_(settings), inner_(std::move(inner)) {}

  void connect(OwnAnswerSource source) override {
    PRIMUS_CHECK("OwnAnswersRule::connect", source.prompt && (source.conversation || settings_.share == 1));
    source_ = std::move(source);
  }

  std::vector<FrozenModel> frozen_models(const ModelConfig& model) const override {
    return inner_->frozen_models(model);
  }
  std::optional<SecondModel> second_model(const ModelConfig& model) override {
    return inner_->second_model(model);
  }
  void load_weights(TrainingSession& session) override { inner_->load_weights(session); }
  std::vector<std::string> metrics() const override { return inner_->metrics(); }
  TokenNeeds needs() const override { return inner_->needs(); }
  const engine::Teacher* teacher(std::int64_t microbatch) const override {
    return inner_->teacher(microbatch);
  }
  void weigh(const TokenLosses& tokens) override { inner_->weigh(tokens); }
  std::vector<TensorSource> state(TrainingSession& session, std::int64_t done) override {
    return inner_->state(session, done);
  }
  std::string restore(TrainingSession& session, const CheckpointReader& checkpoint) override {
    return inner_->restore(session, checkpoint);
  }
  std::optional<std::int64_t> filled_microbatches() const override { return filled_; }
  std::vector<std::pair<std::string, double>> host_metrics() const override { return metrics_; }
  std::string_view name_of_loss() const override {
    return generated_ ? "loss/own_answers" : "loss/given_answers";
  }
  std::vector<GeneratedAnswer> take_answers() override { return std::exchange(examples_, {}); }

  void prepare(TrainingSession& session) override {
    engine::Rank& rank = session.rank();
    const StepSettings& step = session.settings().step;
    rows_ = {.micro_batch = step.micro_batch, .sequence = step.sequence, .microbatches = step.microbatches};
    data_ranks_ = rank.mesh().data_ranks();
    data_rank_ = rank.mesh().data_rank();
    const engine::MeshPlace& place = rank.mesh().place();
    const bool writes = place.tensor == 0 && place.context == 0 && place.stage == 0;
    first_ = writes && data_rank_ == 0;
    generator_.emplace(session);
    table_.emplace(rank, rows_.count() * data_ranks_, kColumns, writes);
    inner_->prepare(session);
  }

  void before_step(const BeforeStep& step) override {
    if (step.session.rank().measuring()) {
      for (int i = 0; i < 2; ++i) table_->exchange(step.session);
      generator_->leave_if_asked();
      inner_->before_step(step);
      return;
    }
    generated_ = generates_answers(settings_, step.step);
    metrics_.clear();
    const std::vector<Rollout> own = generated_ ? generate(step) : given(step.batches);
    gather(step.session, own);
    learn(step.batches, own);
    // A mesh that cannot skip microbatches also computes the last ones, so the teacher must read them.
    BeforeStep filled = step;
    if (step.session.step().may_skip())
      filled.batches = step.batches.first(static_cast<std::size_t>(filled_));
    inner_->before_step(filled);
    if (!generated_) return;
    std::vector<double> lengths;
    double finished = 0;
    for (std::int64_t a = 0; a < answers(); ++a) {
      lengths.push_back(table_->at(a, kLength));
      finished += table_->at(a, kFinished);
    }
    const auto of_lengths = length_metrics(lengths, static_cast<double>(answers()) - finished);
    metrics_.insert(metrics_.begin(), of_lengths.begin(), of_lengths.end());
  }

 private:
  std::int64_t answers() const { return rows_.count() * data_ranks_; }
  std::int64_t number_of(std::int64_t row) const {
    return number_of_answer(row, rows_, data_ranks_, data_rank_);
  }

  // Returns the answers of the data to the conversations of this data rank, in the order of its rows.
  std::vector<Rollout> given(std::span<const data::Batch> batches) const {
    std::vector<Rollout> own;
    for (std::int64_t i = 0; i < rows_.count(); ++i) {
      const std::int64_t record = record_of_row(batches, rows_, i);
      const data::LearnedRow row = source_.conversation(record);
      const auto first = std::ranges::find(row.learned, std::uint8_t{1}) - row.learned.begin();
      PRIMUS_CHECK("OwnAnswersRule::before_step", first > 0 && first < std::ssize(row.tokens));
      const auto middle = row.tokens.begin() + first;
      own.push_back({.record = record,
                     .prompt = {row.tokens.begin(), middle},
                     .answer = {middle, row.tokens.end()},
                     .log_probs = std::vector<float>(row.tokens.size() - static_cast<std::size_t>(first)),
                     .generated = {row.learned.begin() + first, row.learned.end()},
                     .finished = true});
    }
    return own;
  }

  // Generates answers with the current weights. Returns this data rank's answers, in the order of its rows.
  std::vector<Rollout> generate(const BeforeStep& step) {
    const std::vector<std::int64_t> records = gather_records(step);
    const double began = steady_seconds();
    const bool together = generator_->together();
    std::vector<Rollout> all(static_cast<std::size_t>(answers()));
    std::vector<AnswerGenerator::Job> jobs;
    for (std::int64_t i = 0; i < (together ? answers() : rows_.count()); ++i) {
      const std::int64_t answer = together ? i : number_of(i);
      Rollout& rollout = all[static_cast<std::size_t>(answer)];
      rollout.record = records[static_cast<std::size_t>(answer)];
      rollout.prompt = source_.prompt(rollout.record);
      jobs.push_back(
          {.rollout = &rollout, .seed = seed_of_answer(settings_.sampling.seed, step.step, answer)});
    }
    const double tokens = generator_->generate({.sampling = settings_.sampling,
                                                .max_tokens = settings_.max_completion_length,
                                                .vocab = source_.vocab,
                                                .stop_ids = source_.stop_ids,
                                                .log_probs = true},
                                               jobs);
    generator_->leave_if_asked();
    const double seconds = steady_seconds() - began;
    metrics_ = {{"rollout/seconds", seconds},
                {"rollout/tokens_per_second", tokens / std::max(seconds, 1e-9)}};
    std::vector<Rollout> own;
    for (std::int64_t i = 0; i < rows_.count(); ++i)
      own.push_back(std::move(all[static_cast<std::size_t>(number_of(i))]));
    if (first_ && source_.text) {
      const Rollout& shown = own.front();
      examples_ = {{.step = step.step,
                    .prompt = source_.text(shown.prompt, true),
                    .text = source_.text(shown.answer, false),
                    .tokens = std::ssize(shown.answer),
                    .finished = shown.finished,
                    .rewards = {}}};
    }
    return own;
  }

  // Returns the record of each conversation of the step, on all data ranks.
  std::vector<std::int64_t> gather_records(const BeforeStep& step) {
    table_->clear();
    for (std::int64_t i = 0; i < rows_.count(); ++i)
      table_->at(number_of(i), kRecord) = static_cast<double>(record_of_row(step.batches, rows_, i));
    table_->exchange(step.session);
    std::vector<std::int64_t> records;
    for (std::int64_t a = 0; a < answers(); ++a)
      records.push_back(static_cast<std::int64_t>(table_->at(a, kRecord)));
    return records;
  }

  // Collects the token counts of all data ranks in the table.
  void gather(TrainingSession& session, std::span<const Rollout> own) {
    table_->clear();
    for (std::int64_t i = 0; i < rows_.count(); ++i) {
      const Rollout& rollout = own[static_cast<std::size_t>(i)];
      const bool learned = rollout.finished || !settings_.mask_truncated_completions;
      const std::int64_t answer = number_of(i);
      table_->at(answer, kInputs) = static_cast<double>(rollout.inputs());
      table_->at(answer, kLength) = static_cast<double>(rollout.answer.size());
      table_->at(answer, kFinished) = rollout.finished ? 1 : 0;
      table_->at(answer, kLearned) = learned ? static_cast<double>(rollout.generated_tokens()) : 0;
    }
    table_->exchange(session);
  }

  // Writes the answers of this data rank into the microbatches.
  void learn(std::span<data::Batch> batches, std::span<const Rollout> own) {
    filled_ = most_filled_microbatches(rows_, 0, rows_.count(), data_ranks_, [this](std::int64_t answer) {
      return static_cast<std::int64_t>(table_->at(answer, kInputs));
    });
    const std::vector<double> values(own.size(), 0);
    pack_rollouts(own, values, rows_, settings_.mask_truncated_completions, batches);
    double learned = 0;
    for (std::int64_t a = 0; a < answers(); ++a) learned += table_->at(a, kLearned);
    const double microbatches = static_cast<double>(rows_.microbatches * data_ranks_);
    for (data::Batch& batch : batches) batch.loss_divisor = std::max(learned, 1.0) / microbatches;
  }

  const OwnAnswerSettings settings_;
  const std::unique_ptr<LossRule> inner_;
  OwnAnswerSource source_;
  RolloutRows rows_;
  int data_ranks_ = 1, data_rank_ = 0;
  bool first_ = true;  // whether this rank shows an answer
  std::optional<AnswerGenerator> generator_;
  std::optional<RankTable> table_;  // one row per answer of the step, on all data ranks
  std::int64_t filled_ = 1;
  bool generated_ = true;  // whether the newest step has generated its answers
  std::vector<std::pair<std::string, double>> metrics_;
  std::vector<GeneratedAnswer> examples_;
};

}  // namespace

bool generates_answers(const OwnAnswerSettings& settings, std::int64_t step) {
  // Draws from layer 2 of the stream; answers use the layers 0 and 1 (seed_of_answer).
  const RandomStream stream(settings.sampling.seed, RandomPurpose::kSampling,
                            static_cast<std::uint32_t>(step), 0, 2);
  return static_cast<double>(stream.uniform(0)) < settings.share;
}

MakeLossRule own_answers_rule(const OwnAnswerSettings& settings, MakeLossRule inner) {
  PRIMUS_CHECK("own_answers_rule", settings.share > 0 && settings.share <= 1 && inner);
  return [settings, inner = std::move(inner)] { return std::make_unique<OwnAnswers>(settings, inner()); };
}

}  // namespace primus
