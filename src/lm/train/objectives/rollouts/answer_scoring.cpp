#include "lm/train/objectives/rollouts/answer_scoring.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/terminal/terminal.h"
#include "base/text/excerpt.h"
#include "lm/reward/stoppable_score.h"

namespace primus {

void AnswerScoring::connect() {
  PRIMUS_CHECK("AnswerScoring::connect", std::ssize(source_.model_tokens) == models_.size());
  names_ = distinct_names(source_.rewards);
}

BackgroundRewards::Answers AnswerScoring::texts_of(std::span<const Rollout> own,
                                                   std::span<const std::size_t> rows) const {
  BackgroundRewards::Answers texts;
  texts.episodes.reserve(rows.size());  // so that pointers to the elements stay valid
  for (const std::size_t row : rows) {
    ScoredAnswer& answer =
        texts.answers.emplace_back(scored_answer(own[row], source_.stop_ids, source_.text));
    answer.prompt = source_.prompt_text(own[row].record);
    if (answer.episode) answer.episode = &texts.episodes.emplace_back(*answer.episode);
    texts.records.push_back(source_.record(own[row].record));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) texts.answers[i].record = &texts.records[i];
  return texts;
}

void AnswerScoring::score(TrainingSession& session, std::span<const Rollout> own,
                          std::span<const std::size_t> rows, bool tells, MissingRewards& missing,
                          std::vector<std::vector<Reward>>& rewards) {
  const BackgroundRewards::Answers texts = texts_of(own, rows);
  for (std::size_t f = 0; f < source_.rewards.size(); ++f) {
    if (models_.model_of(static_cast<std::int64_t>(f)) >= 0) {
      score_model(session, f, own, rows, texts, tells, missing, rewards);
    } else if (tells && !rows.empty() && !session.stop_requested()) {
      std::vector<Reward> scored = stoppable_score(*source_.rewards[f], texts.answers, session.stop());
      if (session.stop_requested()) {
        if (source_.warn && session.rank().mesh().rank() == 0)
          source_.warn(
              "stop requested: the step ends without its rewards. Ctrl-C again ends the run at once, without "
              "a checkpoint of this stop");
        continue;
      }
      if (const auto retries = source_.rewards[f]->take_retries()) count_retries(f, *retries);
      store(f, rows, std::move(scored), missing, rewards);
    }
  }
}

void AnswerScoring::finish(TrainingSession& session, std::span<const Rollout> own,
                           std::span<const std::size_t> rows, bool tells,
                           std::span<const std::optional<BackgroundRewards::Scored>> scored,
                           MissingRewards& missing, std::vector<std::vector<Reward>>& rewards) {
  BackgroundRewards::Answers texts;
  if (models_.size() > 0) texts = texts_of(own, rows);
  for (std::size_t f = 0; f < source_.rewards.size(); ++f) {
    if (models_.model_of(static_cast<std::int64_t>(f)) >= 0) {
      score_model(session, f, own, rows, texts, tells, missing, rewards);
    } else if (tells && !rows.empty()) {
      PRIMUS_CHECK("AnswerScoring::finish", f < scored.size() && scored[f]);
      std::vector<Reward> of_rows;
      for (const std::size_t row : rows) of_rows.push_back(scored[f]->rewards[row]);
      count_retries(f, scored[f]->retries);
      store(f, rows, std::move(of_rows), missing, rewards);
    }
  }
}

void AnswerScoring::score_model(TrainingSession& session, std::size_t function, std::span<const Rollout> own,
                                std::span<const std::size_t> rows, const BackgroundRewards::Answers& texts,
                                bool tells, MissingRewards& missing,
                                std::vector<std::vector<Reward>>& rewards) {
  const std::int64_t model = models_.model_of(static_cast<std::int64_t>(function));
  std::vector<RewardTokens> tokens;
  for (std::size_t i = 0; i < rows.size(); ++i)
    tokens.push_back(source_.model_tokens[static_cast<std::size_t>(model)](own[rows[i]], texts.answers[i]));
  std::vector<Reward> scored = models_.score(session, model, tokens);
  if (tells && !rows.empty()) store(function, rows, std::move(scored), missing, rewards);
}

void AnswerScoring::store(std::size_t function, std::span<const std::size_t> rows, std::vector<Reward> scored,
                          MissingRewards& missing, std::vector<std::vector<Reward>>& rewards) const {
  PRIMUS_CHECK("RewardFunction::score", scored.size() == rows.size());
  const auto failed = std::ranges::find_if(scored, [](const Reward& r) { return !r.value; });
  if (failed != scored.end()) missing.add(fmt::format("{}: {}", names_[function], failed->problem));
  for (std::size_t i = 0; i < rows.size(); ++i) rewards[function][rows[i]] = std::move(scored[i]);
}

// Adds the repeated attempts of a function to those of the step. Warns once about each reason.
void AnswerScoring::count_retries(std::size_t function, const RewardRetries& retries) {
  retries_[function] += retries.count;
  for (const std::string& problem : retries.problems) {
    if (!source_.warn || !retried_.insert(names_[function] + problem).second) continue;
    source_.warn(
        fmt::format("the reward function {} failed and was repeated, because {}. The metric "
                    "rewards/{}/retries is the number of repetitions in a step",
                    names_[function], problem, names_[function]));
  }
}

void AnswerScoring::warn_of_failures(std::int64_t step, AnswerTable& table,
                                     std::span<const std::int64_t> numbers, bool tells,
                                     std::span<const Rollout> own,
                                     std::span<const std::vector<Reward>> rewards,
                                     MissingRewards& missing) const {
  const std::vector<std::int64_t> without = table.results().without;
  for (std::size_t f = 0; f < names_.size(); ++f) {
    if (without[f] == 0) continue;
    std::int64_t first = 0;
    while (table.at(first, static_cast<std::int64_t>(f), AnswerTable::kHasReward) != 0) ++first;
    for (std::size_t i = 0; tells && source_.warn && i < numbers.size(); ++i) {
      if (numbers[i] != first || !missing.is_new(f, rewards[f][i].problem)) continue;
      source_.warn(fmt::format(
          "step {}: the reward function {} gave no reward to {} of {} answers, for example to an answer to "
          "'{}', because {}. The sums of these answers lack this function. The metric rewards/{}/without is "
          "the share of such answers",
          step, names_[f], without[f], table.answers(),
          printable(excerpt(source_.prompt_text(own[i].record))), rewards[f][i].problem, names_[f]));
    }
  }
}

void AnswerScoring::add_retries(AnswerTable& table,
                                std::vector<std::pair<std::string, double>>& metrics) const {
  for (std::size_t f = 0; f < source_.rewards.size(); ++f) {
    if (!source_.rewards[f]->take_retries()) continue;  // a function without repetitions
    double retries = 0;
    for (std::int64_t a = 0; a < table.answers(); ++a)
      retries += table.at(a, static_cast<std::int64_t>(f), AnswerTable::kRetries);
    metrics.emplace_back(fmt::format("rewards/{}/retries", names_[f]), retries);
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
