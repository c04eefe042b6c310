// Both losses of PPO on the device: the clipped loss of the policy, and the clipped regression of the value
// model to the returns. Copies the tables of a step to the device, from which turbo/policy_loss computes
// weights and metrics. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lm/train/objectives/rules/held_tokens.h"
#include "lm/train/objectives/rules/ppo_estimates.h"
#include "lm/train/step/loss_rule.h"
#include "turbo/policy_loss/policy_loss.h"

namespace primus {

// The tokens of an answer in a microbatch: labels [first, first + tokens), and values
// [first, first + values), which may have one more entry.
struct AnswerPlace {
  std::size_t first = 0, tokens = 0, values = 0;
};

// Returns the places of the answers with a reward.
std::vector<AnswerPlace> places_of(const data::BatchView& batch, std::int64_t max_completion_length);

class PpoLosses {
 public:
  // Allocates persistent memory, so construct it in LossRule::prepare().
  PpoLosses(TrainingSession& session, const PpoSettings& settings);

  // Copies the tables of this rank's microbatches to the device, and counts the tokens of the step on all
  // ranks. A measuring rank makes the same calls of the device.
  void begin_step(TrainingSession& session, std::span<const data::Batch> batches);

  // The metrics of weigh_policy() and of weigh_values(), in the order in which they are added.
  static std::vector<std::string> policy_metrics(const PpoSettings& settings);
  static std::vector<std::string> value_metrics() { return {"loss", "value_loss", "value_clip_ratio"}; }

  // Write the weights of a microbatch (LossRule::weigh).
  void weigh_policy(const TokenLosses& tokens);
  void weigh_values(const TokenLosses& tokens);

 private:
  enum class Table : std::uint8_t { kAnswers, kValueTokens, kOldLogProbs, kValues, kAdvantages, kReturns };
  static constexpr std::int64_t kTables = 6;
  enum class Loss : std::uint8_t { kPolicy, kValue };

  Tensor table(std::int64_t microbatch, Table which) const;
  // Returns the number of tokens that have this loss, in the form of PolicyLoss::totals.
  Tensor totals(Loss of) const;
  // Fills the tables of a microbatch on the host, and counts its tokens.
  void fill(const data::Batch& batch, std::int64_t microbatch);
  void weigh(Loss of, const TokenLosses& tokens, const turbo::PolicyTerms& terms,
             const turbo::PolicyTokens& of_tokens, std::span<const turbo::PolicyMetric> metrics);

  const PpoSettings settings_;
  const std::size_t tokens_;  // of a microbatch, on all context ranks
  Tensor tables_;             // [microbatches, kTables, tokens of this rank] fp32
  Tensor totals_;             // [2, 2] fp64: an unused number and a number of tokens, for each loss
  Tensor starts_, roles_;     // one document for each row of a microbatch
  HeldTokens held_;
  std::vector<float> host_;  // the tables of the step
  std::vector<double> host_totals_;
  std::unique_ptr<Event> copied_;
};

}  // namespace primus
