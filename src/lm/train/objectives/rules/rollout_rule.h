// The work of reinforcement learning before a step, as a loss rule around another rule. Before each step, the
// rule generates answers to the prompts of the step with the current weights, scores the answers with reward
// functions, computes advantages, and writes the answers into the microbatches. The inner rule
// (policy_rule.h) then computes the losses of these answers.
//
// Row m of microbatch i of data rank r contains the prompt of answer number (i * ranks + r) * rows + m of the
// step, as a document with the role kPrompt. Answers of one prompt have consecutive numbers and share the
// cache pages of the prompt. If RolloutSettings::iterations is above 1, only every iterations-th step
// generates answers, beginning with step 1, and the steps between learn from the same answers again
// (kept_answers.h). If RolloutSettings::ahead is set, steps learn from answers of older weights
// (answers_ahead.h). With dynamic sampling (dynamic_sampling.h), a step generates groups with equal rewards
// again, for other prompts. Random numbers depend only on the seed, the step, the number of the answer and
// the attempt, so the mesh does not change the answers, except where logits differ by rounding.
//
// Ranks with the same sequences (tensor, context and pipeline ranks) generate together. With expert
// parallelism or sharded parameters, every rank needs all others in each pass, so all ranks generate all
// answers of the step together. For each data rank, one of its ranks calls the reward functions, and the
// others receive the results. All ranks run the reward models together. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lm/decode/sampler.h"
#include "lm/reward/reward.h"
#include "lm/train/objectives/rollouts/episodes.h"
#include "lm/train/objectives/rollouts/reward_models.h"
#include "lm/train/objectives/rollouts/rollouts.h"
#include "lm/train/objectives/rules/advantages.h"
#include "lm/train/step/loss_rule.h"
#include "lm/train/step/session.h"

namespace primus {

// Computes advantages of the answers of a step; see compute_advantages().
using AdvantagesOf = std::function<Advantages(std::span<const std::optional<double>> rewards,
                                              std::int64_t functions, std::span<const double> divergences)>;

struct RolloutSettings {
  std::int64_t max_completion_length = 256;  // max number of tokens of an answer
  // How tokens are chosen. The seed is the seed of the run. The log-probabilities for the loss are those at
  // temperature 1, so a session whose answers have another temperature divides the logits by the temperature
  // (with_temperature()).
  SamplingSettings sampling = {.temperature = 1};
  bool mask_truncated_completions = false;  // whether answers that were cut off have no loss
  std::int64_t functions = 1;               // number of reward functions
  std::int64_t iterations = 1;              // number of consecutive steps that learn from the same answers
  std::int64_t num_generations = 1;         // number of answers of a group, used for dynamic sampling
  // Dynamic sampling (dynamic_sampling.h): max number of times that a step generates groups; 0: off. The rule
  // then takes prompts from RolloutSource::prompt_at, and not from the batches.
  std::int64_t sampling_attempts = 0;
  // Whether the advantages need the divergence of each answer from the reference model: the sum of
  // ln p(current) - ln p(reference) over the tokens of the answer. The inner rule must have the reference.
  bool divergences = false;
  // Answers that are generated before their steps (answers_ahead.h).
  struct Ahead {
    // Number of batches of answers that are generated before the steps that learn from them, so that their
    // rewards are computed while the run trains. Not with `estimate` or dynamic sampling. The rule then takes
    // prompts from RolloutSource::prompt_at, and functions from RolloutSource::make_rewards.
    std::int64_t batches = 0;
    // Whether the log-probabilities of the sampler are the old log-probabilities of the loss, so that the
    // ratio compares the current weights with the answers' weights. If not, the first step that
    // learns from a batch has the ratio 1, and the inner rule corrects the difference from the sampler.
    bool sampled_is_old = true;
  } ahead = {};
  // Max number of turns of the model in a conversation with an environment; 0: answers have one turn. The
  // rule then needs RolloutSource::episodes, and max_completion_length also counts the tokens of appended
  // messages.
  std::int64_t max_turns = 0;
  AdvantagesOf advantages;
  // PPO with a value model. After answers were generated and scored, computes the values of their tokens with
  // the current weights, and writes them into `batches` (PpoRule::estimate of the inner rule). The answers
  // then have estimates (Rollout::values), and their last tokens are also inputs. The advantages above are
  // the scores of answers, NaN for answers without a score. Empty: there are no estimates.
  std::function<void(LossRule& inner, TrainingSession& session, std::span<data::Batch> batches)> estimate =
      {};
  // Subtracted from the score of an answer that was cut off; only with `estimate`.
  double missing_eos_penalty = 0;
  // Number of parts into which the answers of a step are divided: each step learns from one part, so that
  // `iterations` * `parts` steps learn from the same answers. More than one part requires `estimate`.
  std::int64_t parts = 1;
  std::vector<RewardModel> reward_models = {};  // of the functions model:FOLDER
};

// The parts of a run that the rule uses.
struct RolloutSource {
  // Return the prompt of a record as tokens, which must stay valid for as long as the rule exists, and as
  // text, and the record with all its columns.
  std::function<std::span<const std::int32_t>(std::int64_t record)> prompt;
  std::function<std::string(std::int64_t record)> prompt_text;
  std::function<nlohmann::json(std::int64_t record)> record;
  // For dynamic sampling and answers ahead: returns the record of the prompt with this number in the order of
  // the run.
  std::function<std::int64_t(std::int64_t number)> prompt_at = {};
  // Returns the text of an answer's tokens.
  std::function<std::string(std::span<const std::int32_t>)> text;
  std::vector<std::unique_ptr<RewardFunction>> rewards = {};  // as many as RolloutSettings::functions
  // For answers ahead: returns further functions, equal to `rewards`, which other threads then call.
  std::function<std::vector<std::unique_ptr<RewardFunction>>()> make_rewards = {};
  std::int64_t last_step = 0;  // for answers ahead: last step of the run; 0: unknown
  // For each reward model: returns the tokens that it reads for an answer. `answer` has the text of
  // `rollout`.
  std::vector<std::function<RewardTokens(const Rollout& rollout, const ScoredAnswer& answer)>> model_tokens =
      {};
  EpisodeSource episodes = {};              // used if RolloutSettings::max_turns is above 0
  std::vector<std::int32_t> stop_ids = {};  // tokens that end an answer
  std::int64_t vocab = 0;                   // only ids below `vocab` are generated; 0: all ids of the model
  // Logs a warning about the first answer to which a function gave no reward, about each reason for which a
  // function was repeated, or about a step without any reward. Only one rank logs each warning, except that
  // each rank that calls a function logs the reasons for its own repetitions.
  std::function<void(const std::string& text)> warn = {};
};

class RolloutRule : public LossRule {
 public:
  // Sets the source. Call it before the first step; a measuring rank needs no source.
  virtual void connect(RolloutSource source) = 0;
};

// Returns the function that makes the rule; `inner` makes the rule of the losses. The rule's before_step()
// throws Error(kInvalid) if no answer has a reward in step 1 or in 3 steps in a row, and StopRequest if the
// run is asked to stop. All answers of any other step without rewards have the advantage 0.
MakeLossRule rollout_rule(const RolloutSettings& settings, MakeLossRule inner);

}  // namespace primus
