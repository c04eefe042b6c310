#include "lm/reward/column_reward.h"

#include <utility>

#include "lm/reward/answer_text.h"

namespace primus {
namespace {

class AnswerReward final : public RewardFunction {
 public:
  AnswerReward(std::string_view name, std::function<Reward(const ScoredAnswer&)> score)
      : name_(name), score_(std::move(score)) {}
  std::string_view name() const override { return name_; }
  std::vector<Reward> score(std::span<const ScoredAnswer> answers) override {
    std::vector<Reward> rewards;
    rewards.reserve(answers.size());
    for (const ScoredAnswer& answer : answers) rewards.push_back(score_(answer));
    return rewards;
  }

 private:
  std::string name_;
  std::function<Reward(const ScoredAnswer&)> score_;
};

}  // namespace

std::unique_ptr<RewardFunction> make_answer_reward(std::string_view name,
                                                   std::function<Reward(const ScoredAnswer& answer)> score) {
  return std::make_unique<AnswerReward>(name, std::move(score));
}

std::unique_ptr<RewardFunction> make_column_reward(std::string_view name, std::string column,
                                                   CompareWithColumn compare) {
  return make_answer_reward(
      name, [column = std::move(column), compare = std::move(compare)](const ScoredAnswer& answer) -> Reward {
        const ColumnText expected = column_text(answer, column);
        if (!expected.text) return {.value = {}, .problem = expected.problem};
        return compare(answer, *expected.text);
      });
}

}  // namespace primus
