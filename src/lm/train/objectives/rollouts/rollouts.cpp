#include "lm/train/objectives/rollouts/rollouts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace primus {

std::vector<std::int64_t> first_fit(std::span<const std::int64_t> lengths, std::int64_t sequence) {
  std::vector<std::int64_t> begins, used;
  for (const std::int64_t length : lengths) {
    PRIMUS_CHECK("first_fit", length > 0 && length <= sequence);
    const auto row =
        std::ranges::find_if(used, [&](std::int64_t tokens) { return tokens + length <= sequence; });
    const std::int64_t before = row == used.end() ? 0 : *row;
    begins.push_back((row - used.begin()) * sequence + before);
    if (row == used.end()) {
      used.push_back(length);
    } else {
      *row += length;
    }
  }
  return begins;
}

std::int64_t filled_microbatches(std::span<const std::int64_t> lengths, const RolloutRows& rows) {
  const std::vector<std::int64_t> begins = first_fit(lengths, rows.sequence);
  return begins.empty() ? 0 : std::ranges::max(begins) / (rows.micro_batch * rows.sequence) + 1;
}

std::int64_t number_of_answer(std::int64_t row, const RolloutRows& rows, int data_ranks, int data_rank) {
  const std::int64_t microbatch = row / rows.micro_batch, m = row % rows.micro_batch;
  return (microbatch * data_ranks + data_rank) * rows.micro_batch + m;
}

std::int64_t most_filled_microbatches(const RolloutRows& rows, std::int64_t begin_row, std::int64_t end_row,
                                      int data_ranks,
                                      const std::function<std::int64_t(std::int64_t answer)>& inputs_of) {
  std::int64_t most = 1;
  for (int rank = 0; rank < data_ranks; ++rank) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t row = begin_row; row < end_row; ++row)
      lengths.push_back(inputs_of(number_of_answer(row, rows, data_ranks, rank)));
    most = std::max(most, filled_microbatches(lengths, rows));
  }
  return most;
}

std::int64_t record_of_row(std::span<const data::Batch> batches, const RolloutRows& rows, std::int64_t row) {
  const data::Batch& batch = batches[static_cast<std::size_t>(row / rows.micro_batch)];
  const auto begin = static_cast<std::int32_t>(row % rows.micro_batch * rows.sequence);
  const auto d = std::ranges::find(batch.document_starts, begin) - batch.document_starts.begin();
  PRIMUS_CHECK("record_of_row",
               d < std::ssize(batch.document_roles) && d < std::ssize(batch.document_records) &&
                   batch.document_roles[static_cast<std::size_t>(d)] == data::DocumentRole::kPrompt);
  return batch.document_records[static_cast<std::size_t>(d)];
}

std::vector<std::pair<std::string, double>> length_metrics(std::span<const double> lengths, double cut_off) {
  const auto answers = static_cast<double>(lengths.size());
  return {{"completions/mean_length", std::accumulate(lengths.begin(), lengths.end(), 0.0) / answers},
          {"completions/min_length", std::ranges::min(lengths)},
          {"completions/max_length", std::ranges::max(lengths)},
          {"completions/clipped_ratio", cut_off / answers}};
}

std::span<const std::int32_t> Rollout::last_turn() const {
  const auto appended = std::ranges::find(generated.rbegin(), generated.rend(), std::uint8_t{0});
  const std::span<const std::int32_t> all = answer;
  return all.last(generated.empty() ? all.size() : static_cast<std::size_t>(appended - generated.rbegin()));
}

std::array<double, kEpisodeColumns> episode_values(const Rollout& rollout) {
  const EpisodeOutcome& end = *rollout.episode;
  return {static_cast<double>(rollout.generated_tokens()), static_cast<double>(end.turns),
          static_cast<double>(end.calls), static_cast<double>(end.invalid_calls), end.failed ? 1.0 : 0.0};
}

ScoredAnswer scored_answer(const Rollout& rollout, std::span<const std::int32_t> stop_ids,
                           const std::function<std::string(std::span<const std::int32_t>)>& text) {
  std::span<const std::int32_t> turn = rollout.last_turn();
  const bool ends = std::ranges::find(stop_ids, turn.back()) != stop_ids.end();
  if (ends) turn = turn.first(turn.size() - 1);
  return {.prompt = {},
          .completion = text(turn),
          .finished = rollout.finished,
          .tokens = rollout.generated_tokens() - (ends ? 1 : 0),
          .episode = rollout.episode ? &rollout.episode->reward : nullptr};
}

void pack_rollouts(std::span<const Rollout> rollouts, std::span<const double> advantages,
                   const RolloutRows& rows, bool mask_truncated, std::span<data::Batch> batches) {
  PRIMUS_CHECK("pack_rollouts", rollouts.size() == advantages.size() &&
                                    std::ssize(rollouts) <= rows.count() &&
                                    std::ssize(batches) == rows.microbatches);
  std::vector<std::int64_t> lengths;
  for (const Rollout& rollout : rollouts) lengths.push_back(rollout.inputs());
  const std::vector<std::int64_t> begins = first_fit(lengths, rows.sequence);
  const auto tokens = static_cast<std::size_t>(rows.micro_batch * rows.sequence);
  const bool has_old = !rollouts.empty() && !rollouts.front().old_log_probs.empty();
  const bool has_estimates = !rollouts.empty() && !rollouts.front().returns.empty();
  for (std::int64_t i = 0; i < rows.microbatches; ++i) {
    data::Batch& batch = batches[static_cast<std::size_t>(i)];
    batch = {};
    batch.tokens.resize(tokens);
    batch.labels.resize(tokens);
    batch.loss_mask.resize(tokens);
    batch.positions.resize(tokens);
    batch.sampled_log_probs.resize(tokens);
    if (has_old) batch.old_log_probs.resize(tokens);
    if (has_estimates) {
      for (std::vector<float>* const table : {&batch.values, &batch.token_advantages, &batch.returns})
        table->resize(tokens);
    }
    const auto add = [&](std::int64_t begin, std::int64_t end, data::DocumentRole role, double value,
                         std::int64_t record) {
      batch.document_starts.push_back(static_cast<std::int32_t>(begin));
      batch.document_roles.push_back(role);
      batch.document_values.push_back(static_cast<float>(value));
      batch.document_records.push_back(record);
      std::iota(batch.positions.begin() + begin, batch.positions.begin() + end, 0);
    };
    for (std::int64_t m = 0; m < rows.micro_batch; ++m) {
      std::int64_t at = m * rows.sequence;
      const std::int64_t end = at + rows.sequence;
      for (std::size_t r = 0; r < rollouts.size(); ++r) {
        if (begins[r] / rows.sequence != i * rows.micro_batch + m) continue;
        const Rollout& rollout = rollouts[r];
        const bool counts = std::isfinite(advantages[r]);
        add(at, at + lengths[r], data::DocumentRole::kAnswer, counts ? advantages[r] : 0, rollout.record);
        std::vector<std::int32_t> text = rollout.prompt;
        text.insert(text.end(), rollout.answer.begin(), rollout.answer.end());
        std::copy(text.begin(), text.begin() + lengths[r], batch.tokens.begin() + at);
        std::copy(text.begin() + 1, text.end(), batch.labels.begin() + at);
        const std::int64_t first = at + std::ssize(rollout.prompt) - 1;
        std::ranges::copy(rollout.log_probs, batch.sampled_log_probs.begin() + first);
        if (has_old) std::ranges::copy(rollout.old_log_probs, batch.old_log_probs.begin() + first);
        if (has_estimates) {
          std::ranges::copy(rollout.values, batch.values.begin() + first);
          std::ranges::copy(rollout.advantages, batch.token_advantages.begin() + first);
          std::ranges::copy(rollout.returns, batch.returns.begin() + first);
        }
        at += lengths[r];
        const float learned = counts && (rollout.finished || !mask_truncated) ? 1.0F : 0.0F;
        std::fill_n(batch.loss_mask.begin() + first, rollout.answer.size(), learned);
        for (std::int64_t t = 0; t < std::ssize(rollout.generated); ++t)
          if (rollout.generated[static_cast<std::size_t>(t)] == 0)
            batch.loss_mask[static_cast<std::size_t>(first + t)] = 0;
        // Batches have log-probabilities only where labels are learned.
        for (auto t = static_cast<std::size_t>(first); t < static_cast<std::size_t>(at); ++t) {
          if (batch.loss_mask[t] != 0) continue;
          batch.sampled_log_probs[t] = 0;
          if (has_old) batch.old_log_probs[t] = 0;
        }
      }
      if (at < end) add(at, end, data::DocumentRole::kNone, 0, -1);
    }
    batch.document_starts.push_back(static_cast<std::int32_t>(tokens));
  }
}

void read_estimates(std::span<const data::Batch> batches, const RolloutRows& rows,
                    std::span<Rollout> rollouts) {
  std::vector<std::int64_t> lengths;
  for (const Rollout& rollout : rollouts) lengths.push_back(rollout.inputs());
  const std::vector<std::int64_t> begins = first_fit(lengths, rows.sequence);
  const std::int64_t tokens = rows.micro_batch * rows.sequence;
  for (std::size_t i = 0; i < rollouts.size(); ++i) {
    Rollout& rollout = rollouts[i];
    const data::Batch& batch = batches[static_cast<std::size_t>(begins[i] / tokens)];
    const std::int64_t first = begins[i] % tokens + std::ssize(rollout.prompt) - 1;
    const auto part = [&](const std::vector<float>& from, std::int64_t count) {
      return std::vector<float>(from.begin() + first, from.begin() + first + count);
    };
    const std::int64_t count = std::ssize(rollout.answer);
    rollout.old_log_probs = part(batch.old_log_probs, count);
    rollout.values = part(batch.values, count + 1);
    rollout.advantages = part(batch.token_advantages, count + 1);
    rollout.returns = part(batch.returns, count + 1);
  }
}

}  // namespace primus
