#include "lm/train/objectives/answer_scoring.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"

namespace primus {

void AnswerScoring::connect() {
  PRIMUS_CHECK("AnswerScoring::connect", std::ssize(source_.model_tokens) == models_.size());
  names_ = distinct_names(source_.rewards);
}

void AnswerScoring::score(TrainingSession& session, std::span<const Rollout> own,
                          std::span<const std::size_t> rows, bool tells, MissingRewards& missing,
                          std::vector<std::vector<Reward>>& rewards) {
  std::vector<ScoredAnswer> answers;
  std::vector<nlohmann::json> records;
  for (const std::size_t row : rows) {
    answers.push_back(scored_answer(own[row], source_.stop_ids, source_.text));
    answers.back().prompt = source_.prompt_text(own[row].record);
    records.push_back(source_.record(own[row].record));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) answers[i].record = &records[i];
  for (std::size_t f = 0; f < source_.rewards.size(); ++f) {
    const std::int64_t model = models_.model_of(static_cast<std::int64_t>(f));
    std::vector<Reward> scored;
    if (model >= 0) {
      std::vector<RewardTokens> texts;
      for (std::size_t i = 0; i < rows.size(); ++i)
        texts.push_back(source_.model_tokens[static_cast<std::size_t>(model)](own[rows[i]], answers[i]));
      scored = models_.score(session, model, texts);
    }
    if (!tells || rows.empty()) continue;
    if (model < 0) {
      scored = source_.rewards[f]->score(answers);
      count_retries(f);
    }
    PRIMUS_CHECK("RewardFunction::score", scored.size() == answers.size());
    const auto failed = std::ranges::find_if(scored, [](const Reward& r) { return !r.value; });
    if (failed != scored.end()) missing.add(fmt::format("{}: {}", names_[f], failed->problem));
    for (std::size_t i = 0; i < rows.size(); ++i) rewards[f][rows[i]] = std::move(scored[i]);
  }
}

// Adds the repeated attempts of a function to those of the step. Warns once about each reason.
void AnswerScoring::count_retries(std::size_t function) {
  const std::optional<RewardRetries> retries = source_.rewards[function]->take_retries();
  if (!retries) return;
  retries_[function] += retries->count;
  for (const std::string& problem : retries->problems) {
    if (!source_.warn) continue;
    source_.warn(
        fmt::format("the reward function {} failed and was repeated, because {}. The metric "
                    "rewards/{}/retries is the number of repetitions in a step",
                    names_[function], problem, names_[function]));
  }
}

std::vector<GeneratedAnswer> AnswerScoring::examples(std::int64_t step, std::span<const Rollout> own,
                                                     std::span<const std::vector<Reward>> rewards) const {
  std::vector<GeneratedAnswer> examples;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const Rollout& one = own[i];
    if (one.record != own[0].record) continue;
    examples.push_back({.step = step,
                        .prompt = source_.prompt_text(one.record),
                        .text = one.episode ? source_.text(one.answer)
                                            : scored_answer(one, source_.stop_ids, source_.text).completion,
                        .tokens = one.generated_tokens(),
                        .finished = one.finished,
                        .rewards = {}});
    for (std::size_t f = 0; f < names_.size(); ++f)
      examples.back().rewards.emplace_back(names_[f], rewards[f][i].value);
  }
  return examples;
}

}  // namespace primus
