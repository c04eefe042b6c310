#include "lm/train/objectives/rules/top_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace primus {
namespace {

constexpr float kNotLearned = -1;  // an entropy is at least 0, except for rounding

}  // namespace

float top_threshold(std::vector<float> values, double top) {
  std::erase_if(values, [](float value) { return std::isnan(value); });
  if (values.empty()) return std::numeric_limits<float>::infinity();
  const auto last = static_cast<float>(values.size() - 1);
  const float position = std::min(static_cast<float>(1 - top) * last, last);
  const auto below = static_cast<std::ptrdiff_t>(position);
  const float part = position - static_cast<float>(below);
  const auto lower = values.begin() + std::min(below, std::ssize(values) - 1);
  std::nth_element(values.begin(), lower, values.end());
  if (part == 0 || lower + 1 == values.end()) return *lower;
  const float upper = *std::min_element(lower + 1, values.end());
  return part < 0.5F ? *lower + part * (upper - *lower) : upper - (upper - *lower) * (1 - part);
}

void TopEntropy::prepare(TrainingSession& session) {
  session_ = &session;
  engine::Rank& rank = session.rank();
  const StepSettings& step = session.settings().step;
  scorer_.emplace(rank, session.trained(), scorer_settings(session),
                  TokenScorer::Options{.values = TokenScorer::Values::kEntropies});
  collector_.emplace(session);
  entropies_ = rank.persistent(DType::kF32, {scorer_->tokens()});
  const int ranks = rank.mesh().data_ranks();
  if (ranks > 1)
    all_ = rank.persistent(DType::kF32, {ranks, step.microbatches * step.micro_batch * step.sequence});
}

std::vector<std::vector<float>> TopEntropy::choose(std::span<const data::Batch> batches,
                                                   std::span<const std::vector<float>> masks) {
  const bool measuring = session_->rank().measuring();
  std::vector<std::vector<float>> tables;
  const auto count =
      measuring ? static_cast<std::size_t>(session_->settings().step.microbatches) : batches.size();
  for (std::size_t at = 0; at < count; ++at) {
    scorer_->score(measuring ? data::BatchView() : data::BatchView(batches[at]), entropies_);
    std::vector<float> table = collector_->collect(entropies_);
    for (std::size_t t = 0; t < table.size(); ++t)
      if (masks[at][t] == 0) table[t] = kNotLearned;
    if (!measuring) tables.push_back(std::move(table));
  }
  const float threshold = top_threshold(gather(tables), top_);
  for (std::vector<float>& table : tables) {
    for (float& value : table) value = value != kNotLearned && value >= threshold ? 1.0F : 0.0F;
  }
  return tables;
}

std::vector<float> TopEntropy::gather(std::span<const std::vector<float>> tables) {
  engine::Rank& rank = session_->rank();
  std::vector<float> own, all;
  for (const std::vector<float>& table : tables) own.insert(own.end(), table.begin(), table.end());
  if (all_.absent()) {
    all = std::move(own);
  } else {
    if (!rank.measuring()) {
      const Tensor row = all_.slice(rank.mesh().data_rank(), rank.mesh().data_rank() + 1);
      own.resize(static_cast<std::size_t>(all_.cols()), kNotLearned);  // for skipped microbatches
      rank.compute().fill_zero(all_.data, all_.bytes());
      rank.compute().copy_to_device(row.data, own.data(), row.bytes());
    }
    session_->parallel().sum_over_data(all_);
    if (!rank.measuring()) {
      all.resize(static_cast<std::size_t>(all_.elements()));
      rank.compute().copy_to_host(all.data(), all_.data, all_.bytes());
      rank.compute().synchronize();
    }
  }
  std::erase(all, kNotLearned);
  return all;
}

}  // namespace primus
