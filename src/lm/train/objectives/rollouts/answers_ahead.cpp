#include "lm/train/objectives/rollouts/answers_ahead.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "lm/train/objectives/rollouts/saved_answers.h"

namespace primus {
namespace {

// Names of the tensors in a checkpoint. Row i * answers + n is answer n of the i-th batch.
constexpr const char *kResults = "rollouts.ahead.results", *kTexts = "rollouts.ahead.texts",
                     *kSampled = "rollouts.ahead.sampled_log_probs";

// Columns of the results: the number of the batch, the number of updates of its weights, the divergence,
// whether the environment gave a reward, this reward, and EpisodeColumn. For each function, FunctionColumn
// follows.
enum Column : std::int64_t {
  kNumber,
  kVersion,
  kDivergence,
  kHasEpisodeReward,
  kEpisodeReward,
  kEpisode,
  kFunctions = kEpisode + std::int64_t{kEpisodeColumns}
};
// Whether the result of a function has arrived, with or without a reward; the reward; the number of repeated
// attempts for the answers of a rank, in the row of its first answer.
enum FunctionColumn : std::int64_t { kArrival, kReward, kRetries, kFunctionColumns };
enum Arrival : std::int64_t { kNotArrived, kWithReward, kWithoutReward };

}  // namespace

struct AnswersAhead::Tables {
  Tables(std::int64_t rows, std::int64_t columns, std::int64_t sequence)
      : results(rows, columns), texts(rows, text_columns(sequence)), sampled(rows, sequence) {}
  Tables(SavedTable<double> r, SavedTable<std::int32_t> t, SavedTable<float> s)
      : results(std::move(r)), texts(std::move(t)), sampled(std::move(s)) {}
  double& at(std::int64_t row, std::int64_t column) {
    return results.row(row)[static_cast<std::size_t>(column)];
  }
  double& at(std::int64_t row, EpisodeColumn column) {
    return at(row, std::int64_t{kEpisode} + std::int64_t{column});
  }
  double& at(std::int64_t row, std::size_t function, FunctionColumn column) {
    return at(row, kFunctions + static_cast<std::int64_t>(function) * kFunctionColumns + column);
  }
  SavedTable<double> results;
  SavedTable<std::int32_t> texts;
  SavedTable<float> sampled;
};

std::int64_t AnswersAhead::columns() const { return kFunctions + kFunctionColumns * place_.functions; }

AnswersAhead::Batch* AnswersAhead::find(std::int64_t number) {
  const auto found = batches_.find(number);
  return found == batches_.end() ? nullptr : &found->second;
}

void AnswersAhead::add(Batch batch) {
  batch.scored.resize(static_cast<std::size_t>(place_.functions));
  for (Rollout& answer : batch.own)
    if (place_.sampled_is_old) answer.old_log_probs = answer.log_probs;
  const std::int64_t number = batch.number;
  PRIMUS_CHECK("AnswersAhead::add", batches_.emplace(number, std::move(batch)).second);
}

void AnswersAhead::forget_before(std::int64_t number) {
  while (!batches_.empty() && batches_.begin()->first < number) {
    if (background_ && batches_.begin()->second.asked) background_->forget(batches_.begin()->first);
    batches_.erase(batches_.begin());
  }
}

std::vector<std::size_t> AnswersAhead::scored_rows(std::span<const Rollout> own) {
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < own.size(); ++i)
    if (!own[i].episode || !own[i].episode->failed) rows.push_back(i);
  return rows;
}

void AnswersAhead::ask(const AnswerScoring& scoring,
                       const std::function<BackgroundRewards::Functions()>& lane) {
  if (!place_.tells) return;
  for (auto& [number, batch] : batches_) {
    if (std::exchange(batch.asked, true)) continue;
    const std::vector<std::size_t> rows = scored_rows(batch.own);
    std::vector<std::size_t> functions;
    for (std::size_t f = 0; f < batch.scored.size(); ++f) {
      if (batch.scored[f] || scoring.models().model_of(static_cast<std::int64_t>(f)) >= 0) continue;
      if (!rows.empty()) functions.push_back(f);
    }
    if (!background_) {
      std::vector<BackgroundRewards::Functions> lanes;
      for (std::int64_t i = 0; i < place_.ahead; ++i) lanes.push_back(lane());
      background_.emplace(std::move(lanes));
    }
    background_->start(number, scoring.texts_of(batch.own, rows), std::move(functions));
  }
}

bool AnswersAhead::wait(Batch& batch, std::chrono::milliseconds time) {
  if (!place_.tells) return true;
  PRIMUS_CHECK("AnswersAhead::wait", batch.asked);
  if (!background_->wait(batch.number, time)) return false;
  collect(batch);
  return true;
}

double AnswersAhead::seconds(const Batch& batch) const {
  return background_ && batch.asked ? background_->seconds(batch.number) : 0;
}

void AnswersAhead::collect(Batch& batch) {
  if (!background_ || !batch.asked) return;
  const std::vector<std::size_t> rows = scored_rows(batch.own);
  for (auto& [function, scored] : background_->arrived(batch.number)) {
    if (batch.scored[function]) continue;
    PRIMUS_CHECK("RewardFunction::score", scored.rewards.size() == rows.size());
    BackgroundRewards::Scored& all = batch.scored[function].emplace();
    all.retries = std::move(scored.retries);
    all.rewards.resize(batch.own.size());
    for (std::size_t i = 0; i < rows.size(); ++i) all.rewards[rows[i]] = std::move(scored.rewards[i]);
  }
}

std::vector<TensorSource> AnswersAhead::state(std::int64_t done) {
  // Batches that a rank has generated for a step that was stopped are left out, because other ranks may not
  // have them.
  const std::int64_t last = batch_of(done);
  std::vector<Batch*> saved;
  for (std::int64_t number = last + 1; number <= last + place_.ahead && find(number); ++number)
    saved.push_back(find(number));
  if (saved.empty()) return {};
  const std::int64_t own = place_.tells ? std::ssize(place_.numbers) : 0;
  Tables tables(own * std::ssize(saved), columns(), place_.sequence);
  std::vector<std::int64_t> held;
  for (std::int64_t i = 0; i < std::ssize(saved) && own > 0; ++i) {
    Batch& batch = *saved[static_cast<std::size_t>(i)];
    collect(batch);
    write(batch, i * own, tables);
    for (const std::int64_t number : place_.numbers) held.push_back(i * place_.answers + number);
  }
  const std::int64_t all = place_.answers * std::ssize(saved);
  std::vector<TensorSource> sources;
  sources.push_back(saved_tensor(kResults, DType::kF64, all, std::move(tables.results), held));
  sources.push_back(saved_tensor(kTexts, DType::kI32, all, std::move(tables.texts), held));
  sources.push_back(saved_tensor(kSampled, DType::kF32, all, std::move(tables.sampled), held));
  return sources;
}

// Writes a batch into the rows from `first`.
void AnswersAhead::write(const Batch& batch, std::int64_t first, Tables& tables) const {
  for (std::size_t i = 0; i < batch.own.size(); ++i) {
    const std::int64_t row = first + static_cast<std::int64_t>(i);
    const Rollout& answer = batch.own[i];
    write_text(answer, tables.texts.row(row));
    std::ranges::copy(answer.log_probs, tables.sampled.row(row).begin());
    tables.at(row, kNumber) = static_cast<double>(batch.number);
    tables.at(row, kVersion) = static_cast<double>(batch.version);
    if (!batch.divergences.empty()) tables.at(row, kDivergence) = batch.divergences[i];
    if (answer.episode) {
      std::ranges::copy(episode_values(answer), &tables.at(row, kGenerated));
      tables.at(row, kHasEpisodeReward) = answer.episode->reward.value ? 1 : 0;
      tables.at(row, kEpisodeReward) = answer.episode->reward.value.value_or(0);
    }
    for (std::size_t f = 0; f < batch.scored.size(); ++f) {
      if (!batch.scored[f]) continue;
      const std::optional<double>& value = batch.scored[f]->rewards[i].value;
      tables.at(row, f, kArrival) = static_cast<double>(value ? kWithReward : kWithoutReward);
      tables.at(row, f, kReward) = value.value_or(0);
      if (i == 0) tables.at(row, f, kRetries) = static_cast<double>(batch.scored[f]->retries.count);
    }
  }
}

void AnswersAhead::restore(const CheckpointReader& checkpoint) {
  batches_.clear();
  const std::optional<TensorView> saved = checkpoint.find(TensorPart::kOptimizer, kResults);
  if (!saved || saved->shape.size() != 2 || saved->shape[0] % place_.answers != 0) return;
  const std::int64_t all = saved->shape[0];
  auto results = read_table<double>(checkpoint, kResults, DType::kF64, all, columns());
  auto texts = read_table<std::int32_t>(checkpoint, kTexts, DType::kI32, all, text_columns(place_.sequence));
  auto sampled = read_table<float>(checkpoint, kSampled, DType::kF32, all, place_.sequence);
  if (!results || !texts || !sampled) return;
  Tables tables(std::move(*results), std::move(*texts), std::move(*sampled));
  const std::int64_t done = checkpoint.iteration(), next = batch_of(done) + 1;
  for (std::int64_t i = 0; i < all / place_.answers; ++i) {
    const std::int64_t begin = i * place_.answers;
    const double version = tables.at(begin, kVersion);
    if (tables.at(begin, kNumber) != static_cast<double>(next + i) || !(version >= 0) ||
        version > static_cast<double>(done))
      throw impossible_answer(checkpoint, begin);
    Batch batch{.number = next + i, .version = static_cast<std::int64_t>(version), .own = {}};
    for (const std::int64_t number : place_.numbers)
      batch.own.push_back(read(checkpoint, tables, begin + number));
    for (const std::int64_t number : place_.numbers)
      batch.divergences.push_back(tables.at(begin + number, kDivergence));
    // A run with a lower bound generates newer answers.
    if (first_step_of(batch.number) - 1 - batch.version > place_.ahead * place_.period) continue;
    const std::int64_t number = batch.number;
    add(std::move(batch));
    if (place_.tells) read_rewards(tables, begin, *find(number));
  }
}

Rollout AnswersAhead::read(const CheckpointReader& checkpoint, Tables& tables, std::int64_t row) const {
  Rollout answer = read_text(checkpoint, row, tables.texts.row(row), place_.sequence, place_.vocab);
  const std::span<const float> sampled = tables.sampled.row(row).first(answer.answer.size());
  answer.log_probs.assign(sampled.begin(), sampled.end());
  if (!place_.episodes) return answer;
  if (answer.generated.empty()) answer.generated.resize(answer.answer.size(), 1);
  EpisodeOutcome& end = answer.episode.emplace();
  if (tables.at(row, kHasEpisodeReward) != 0) {
    end.reward.value = tables.at(row, kEpisodeReward);
  } else {
    end.reward.problem = "the environment gave none before the checkpoint was saved";
  }
  end.failed = tables.at(row, kFailed) != 0;
  end.turns = static_cast<std::int64_t>(tables.at(row, kTurns));
  end.calls = static_cast<std::int64_t>(tables.at(row, kCalls));
  end.invalid_calls = static_cast<std::int64_t>(tables.at(row, kInvalidCalls));
  return answer;
}

// Reads the results of the functions whose rewards have arrived for all answers of this rank.
void AnswersAhead::read_rewards(Tables& tables, std::int64_t first, Batch& batch) const {
  const std::vector<std::size_t> rows = scored_rows(batch.own);
  for (std::size_t f = 0; f < batch.scored.size(); ++f) {
    BackgroundRewards::Scored scored{.rewards = std::vector<Reward>(batch.own.size())};
    bool whole = true;
    for (const std::int64_t number : place_.numbers)
      scored.retries.count += static_cast<std::int64_t>(tables.at(first + number, f, kRetries));
    for (const std::size_t i : rows) {
      const std::int64_t row = first + place_.numbers[i];
      const auto arrival = static_cast<std::int64_t>(tables.at(row, f, kArrival));
      whole = whole && arrival != kNotArrived;
      if (arrival == kWithReward) {
        scored.rewards[i].value = tables.at(row, f, kReward);
      } else {
        scored.rewards[i].problem = "it gave none before the checkpoint was saved";
      }
    }
    if (whole) batch.scored[f] = std::move(scored);
  }
}

}  // namespace primus
