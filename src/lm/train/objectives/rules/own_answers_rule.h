// The work of on-policy distillation before a step, as a loss rule around the rule of the loss. A step has
// one conversation in each row of its microbatches. In a share of the steps, the trained model first
// generates a new answer to the prompt of each conversation, with the current weights. The other steps take
// the answers of the data. In both cases, prompts with their answers are then packed into the microbatches,
// and the loss is the mean over all learned tokens of the step.
//
// Whether a step generates answers depends only on the seed and the step. The random choices for an answer
// also depend on the number of the answer within the step. Therefore every mesh, and a run that stops and
// resumes, learn from the same answers, except where logits differ by rounding. Rows, answers and the ranks
// that generate together are as in rollout_rule.h. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lm/data/on_policy_dataset.h"
#include "lm/decode/sampler.h"
#include "lm/train/step/loss_rule.h"

namespace primus {

struct OwnAnswerSettings {
  double share = 1;                                // share of the steps that generate answers
  std::int64_t max_completion_length = 256;        // max number of tokens of an answer
  SamplingSettings sampling = {.temperature = 1};  // how tokens are chosen; its seed also selects the steps
  bool mask_truncated_completions = false;         // whether generated answers that were cut off have no loss
};

// Returns whether this step generates its answers.
bool generates_answers(const OwnAnswerSettings& settings, std::int64_t step);

// The parts of a run that the rule uses.
struct OwnAnswerSource {
  // Return the tokens before the last answer of a record, and the record with the answers of the data.
  std::function<std::vector<std::int32_t>(std::int64_t record)> prompt;
  std::function<data::LearnedRow(std::int64_t record)> conversation;
  // Returns the text of tokens. `special`: whether the text contains special tokens.
  std::function<std::string(std::span<const std::int32_t>, bool special)> text;
  std::vector<std::int32_t> stop_ids = {};  // tokens that end an answer
  std::int64_t vocab = 0;                   // only ids below `vocab` are generated; 0: all ids of the model
};

class OwnAnswersRule : public LossRule {
 public:
  // Sets the source. Call it before the first step; a measuring rank needs no source.
  virtual void connect(OwnAnswerSource source) = 0;
};

// Returns the function that makes the rule; `inner` makes the rule of the loss, whose before_step() receives
// only the microbatches that contain answers. before_step() throws StopRequest if the run is asked to stop.
MakeLossRule own_answers_rule(const OwnAnswerSettings& settings, MakeLossRule inner);

}  // namespace primus
