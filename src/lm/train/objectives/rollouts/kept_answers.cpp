#include "lm/train/objectives/rollouts/kept_answers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "lm/train/objectives/rollouts/saved_answers.h"
#include "lm/train/step/session.h"

namespace primus {
namespace {

// Names of the tensors in a checkpoint.
constexpr const char *kResults = "rollouts.results", *kTexts = "rollouts.texts",
                     *kSampled = "rollouts.sampled_log_probs", *kOld = "rollouts.old_log_probs",
                     *kEstimates = "rollouts.estimates";

}  // namespace

KeptAnswers::KeptAnswers(TrainingSession& session, Place place)
    : session_(session), place_(std::move(place)), collector_(session) {
  const std::int64_t context = session.rank().mesh().shape().context;
  losses_ = session.rank().persistent(
      DType::kF32, {place_.rows.microbatches, place_.rows.micro_batch * place_.rows.sequence / context});
}

void KeptAnswers::keep(std::vector<Rollout> answers, std::int64_t filled) {
  answers_ = std::move(answers);
  filled_ = filled;
  records_ = answers_.empty() || answers_.front().old_log_probs.empty();
}

void KeptAnswers::record(const TokenLosses& tokens) {
  engine::Rank& rank = tokens.rank;
  if (rank.measuring() || !records_ || tokens.microbatch >= filled_) return;
  const Tensor row = losses_.slice(tokens.microbatch, tokens.microbatch + 1);
  PRIMUS_CHECK("KeptAnswers::record", row.bytes() == tokens.losses.bytes());
  rank.compute().copy_on_device(row.data, tokens.losses.data, row.bytes());
}

std::span<const Rollout> KeptAnswers::answers() {
  collect();
  return answers_;
}

void KeptAnswers::collect() {
  if (session_.rank().measuring()) {
    for (std::int64_t i = 0; i < place_.rows.microbatches; ++i) collector_.collect(losses_);
    return;
  }
  if (!std::exchange(records_, false)) return;
  std::vector<float> all;
  for (std::int64_t i = 0; i < filled_; ++i) {
    const Tensor row = losses_.slice(i, i + 1).reshaped({losses_.cols()});
    const std::vector<float> values = collector_.collect(row);
    all.insert(all.end(), values.begin(), values.end());
  }
  std::vector<std::int64_t> lengths;
  for (const Rollout& answer : answers_) lengths.push_back(answer.inputs());
  const std::vector<std::int64_t> begins = first_fit(lengths, place_.rows.sequence);
  for (std::size_t i = 0; i < answers_.size(); ++i) {
    Rollout& answer = answers_[i];
    answer.old_log_probs.clear();
    const std::int64_t first = begins[i] + std::ssize(answer.prompt) - 1;
    for (std::int64_t t = 0; t < std::ssize(answer.answer); ++t)
      answer.old_log_probs.push_back(-all[static_cast<std::size_t>(first + t)]);
  }
}

std::vector<TensorSource> KeptAnswers::state(std::span<const double> results) {
  collect();
  const std::int64_t sequence = place_.rows.sequence;
  const std::span<const std::int64_t> held =
      place_.writes ? std::span<const std::int64_t>(place_.numbers) : std::span<const std::int64_t>();
  const std::int64_t rows = std::ssize(held);
  SavedTable<double> values(rows, place_.columns);
  SavedTable<std::int32_t> texts(rows, text_columns(sequence));
  SavedTable<float> sampled(rows, sequence), old(rows, sequence);
  // The values, advantages and returns of PPO, one after the other.
  SavedTable<float> estimates(place_.estimates ? rows : 0, 3 * length());
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t number = held[static_cast<std::size_t>(i)];
    const Rollout& answer = answers_[static_cast<std::size_t>(i)];
    std::ranges::copy(results.subspan(static_cast<std::size_t>(number * place_.columns),
                                      static_cast<std::size_t>(place_.columns)),
                      values.row(i).begin());
    write_text(answer, texts.row(i));
    std::ranges::copy(answer.log_probs, sampled.row(i).begin());
    std::ranges::copy(answer.old_log_probs, old.row(i).begin());
    if (!place_.estimates) continue;
    auto to = estimates.row(i).begin();
    for (const std::vector<float>* const one : {&answer.values, &answer.advantages, &answer.returns}) {
      std::ranges::copy(*one, to);
      to += length();
    }
  }
  std::vector<TensorSource> sources;
  const std::int64_t all = place_.answers;
  sources.push_back(saved_tensor(kResults, DType::kF64, all, std::move(values), held));
  sources.push_back(saved_tensor(kTexts, DType::kI32, all, std::move(texts), held));
  sources.push_back(saved_tensor(kSampled, DType::kF32, all, std::move(sampled), held));
  sources.push_back(saved_tensor(kOld, DType::kF32, all, std::move(old), held));
  if (place_.estimates)
    sources.push_back(saved_tensor(kEstimates, DType::kF32, all, std::move(estimates), held));
  return sources;
}

std::vector<double> KeptAnswers::restore(const CheckpointReader& checkpoint) {
  const std::int64_t all = place_.answers, sequence = place_.rows.sequence;
  auto results = read_table<double>(checkpoint, kResults, DType::kF64, all, place_.columns);
  auto texts = read_table<std::int32_t>(checkpoint, kTexts, DType::kI32, all, text_columns(sequence));
  auto sampled = read_table<float>(checkpoint, kSampled, DType::kF32, all, sequence);
  auto old = read_table<float>(checkpoint, kOld, DType::kF32, all, sequence);
  std::optional<SavedTable<float>> estimates;
  if (place_.estimates) estimates = read_table<float>(checkpoint, kEstimates, DType::kF32, all, 3 * length());
  if (!results || !texts || !sampled || !old || estimates.has_value() != place_.estimates) return {};
  std::vector<Rollout> answers;
  for (const std::int64_t number : place_.numbers) {
    answers.push_back(
        read_text(checkpoint, number, texts->row(number), sequence, session_.settings().model.vocab));
    Rollout& answer = answers.back();
    const auto values = [&](SavedTable<float>& table) {
      const std::span<const float> from = table.row(number).first(answer.answer.size());
      return std::vector<float>(from.begin(), from.end());
    };
    answer.log_probs = values(*sampled);
    answer.old_log_probs = values(*old);
    if (!estimates) continue;
    answer.last_is_input = true;
    auto from = estimates->row(number).begin();
    for (std::vector<float>* const one : {&answer.values, &answer.advantages, &answer.returns}) {
      one->assign(from, from + std::ssize(answer.answer) + 1);
      from += length();
    }
  }
  answers_ = std::move(answers);
  records_ = false;
  return std::move(results->values);
}

}  // namespace primus
