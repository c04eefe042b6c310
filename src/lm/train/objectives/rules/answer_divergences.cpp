#include "lm/train/objectives/rules/answer_divergences.h"

#include "lm/train/objectives/reference_model.h"

namespace primus {

AnswerDivergences::AnswerDivergences(TrainingSession& session)
    : current_(session, ScoredModel{.model = session.trained()}),
      reference_(session, reference_of(session)) {}

void AnswerDivergences::measure(std::int64_t microbatches) {
  for (std::int64_t i = 0; i < microbatches; ++i) {
    current_.compute({});
    reference_.compute({});
  }
}

std::vector<double> AnswerDivergences::compute(std::span<const Rollout> own,
                                               std::span<const data::Batch> batches, std::int64_t sequence) {
  std::vector<double> sums;  // for each token of the microbatches: the sum up to this token
  double sum = 0;
  for (const data::Batch& batch : batches) {
    const std::vector<float> current = current_.compute(batch), reference = reference_.compute(batch);
    for (std::size_t t = 0; t < current.size(); ++t) {
      sums.push_back(sum);
      sum += static_cast<double>(current[t]) - static_cast<double>(reference[t]);
    }
  }
  sums.push_back(sum);
  std::vector<std::int64_t> lengths;
  for (const Rollout& rollout : own) lengths.push_back(rollout.inputs());
  const std::vector<std::int64_t> begins = first_fit(lengths, sequence);
  std::vector<double> divergences;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto begin = static_cast<std::size_t>(begins[i]);
    divergences.push_back(sums[begin + static_cast<std::size_t>(lengths[i])] - sums[begin]);
  }
  return divergences;
}

}  // namespace primus
