// A table with one row per answer of a step, for all data ranks: lengths, rewards, and counts of episodes.
// Every rank writes the rows of its own answers, and exchange() adds up the tables of all ranks. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lm/train/objectives/rollouts/rank_table.h"
#include "lm/train/objectives/rollouts/rollouts.h"
#include "lm/train/objectives/rules/advantages.h"
#include "lm/train/step/session.h"

namespace primus {

class AnswerTable {
 public:
  // Columns: the prompt's record + 1, the numbers of tokens of the prompt and of the answer, whether the
  // model ended the answer, the divergence; then for each reward function, whether there is a reward, the
  // reward, and the number of repeated attempts. The repeated attempts of a data rank are in the row of its
  // first answer. With an environment, EpisodeColumn follows.
  enum Column : std::int64_t { kRecord, kPrompt, kLength, kFinished, kDivergence, kRewards };
  enum FunctionColumn : std::int64_t { kHasReward, kReward, kRetries, kFunctionColumns };

  struct Settings {
    std::int64_t answers = 1, functions = 1;
    bool episodes = false;  // whether the table has the columns of EpisodeColumn
    bool writes = true;     // whether this rank writes the rows of its data rank
  };
  // Allocates persistent memory, so construct it in LossRule::prepare().
  AnswerTable(engine::Rank& rank, const Settings& settings);

  std::int64_t answers() const { return settings_.answers; }
  std::int64_t columns() const {
    return kRewards + kFunctionColumns * settings_.functions +
           (settings_.episodes ? std::int64_t{kEpisodeColumns} : 0);
  }
  double& at(std::int64_t answer, Column column) { return element(answer, column); }
  double& at(std::int64_t answer, EpisodeColumn column) {
    return element(answer, kRewards + kFunctionColumns * settings_.functions + column);
  }
  double& at(std::int64_t answer, std::int64_t function, FunctionColumn column) {
    return element(answer, kRewards + kFunctionColumns * function + column);
  }
  void clear() { table_.clear(); }
  // All elements, [answers, columns()].
  std::vector<double>& values() { return table_.values(); }

  // Adds up the tables of all ranks. Exactly one rank writes each row. All ranks call it.
  void exchange(TrainingSession& session) { table_.exchange(session); }

  // Exchanges one column, and keeps the others. `numbers`, `values`: the answers of this data rank.
  void exchange(TrainingSession& session, Column column, std::span<const std::int64_t> numbers,
                std::span<const double> values);
  // Returns the first answer that, with its prompt, has no token or more than `most`; -1 if there is none.
  std::int64_t first_too_long(std::int64_t most);

  // The rewards of all answers.
  struct Results {
    std::vector<std::optional<double>> rewards;  // [answers, functions]
    std::vector<std::int64_t> without;  // for each function, the number of answers without its reward
    std::int64_t unrewarded = 0;        // number of answers without any reward
  };
  Results results();

  // Returns the metrics of a step. `names`: the names of the reward functions.
  std::vector<std::pair<std::string, double>> metrics(const Advantages& advantages, const Results& all,
                                                      const std::vector<std::string>& names);

 private:
  double& element(std::int64_t answer, std::int64_t column) { return table_.at(answer, column); }

  const Settings settings_;
  RankTable table_;  // [answers, columns()]
};

}  // namespace primus
