// Reads the reward models in the key `reward` (model:FOLDER), and writes answers as the texts that they read.
//
// If the prompts of the run are conversations, a reward model reads the conversation that ends with the
// answer, as its own chat template writes it, with its own tokenizer. This is the form of the texts on which
// 'primus train reward' and TRL train reward models, and with which TRL's GRPOTrainer calls them. If the
// prompts are plain texts, a reward model reads prompt and answer as one text, and its end-of-text token if
// the answer was not cut off. If its tokenizer has the ids of the trained model's tokenizer, this text
// consists of the tokens of the run, as in TRL's PPOTrainer; otherwise the text is encoded.
//
// Errors: Error(kInvalid) or Error(kUnsupported) at the key `reward`, or at a key of the mesh.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "config/experiment.h"
#include "lm/data/prompt_dataset.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/objectives/rollouts/reward_models.h"
#include "lm/train/objectives/rules/rollout_rule.h"
#include "lm/train/step/session.h"

namespace primus {

// Returns the reward models of the run. Throws for a folder without a model, a model without a head for
// scores, a head with several labels, adapters, and runs with an environment.
std::vector<RewardModel> reward_models_of(const config::Experiment& experiment);

// Throws the errors of reward_models_of(), and for a reward model without a tokenizer, or whose tokenizer has
// more tokens than the model.
void check_reward_models(const config::Experiment& experiment);

// Throws if the mesh of a run on `world` ranks cannot divide a reward model.
void check_reward_meshes(const config::Experiment& experiment, int world, const SessionSettings& settings);

// Returns RolloutSource::model_tokens. The results refer to `request.tokenizer`, and share `prompts`. Throws
// for a reward model without a chat template if the prompts are conversations. Logs a warning for a reward
// model whose chat template is not used because the prompts are plain texts.
std::vector<std::function<RewardTokens(const Rollout& rollout, const ScoredAnswer& answer)>> reward_tokens_of(
    const DataRequest& request, const std::shared_ptr<const data::Prompts>& prompts);

}  // namespace primus
