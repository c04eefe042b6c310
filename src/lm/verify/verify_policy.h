// The cases of policy gradients (GRPO and RLOO) of verify_objective.h.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "lm/train/objectives/rules/policy_settings.h"
#include "lm/verify/objective_cases.h"

namespace primus {

// Reads prompts with their answers: prompt_ids, completion_ids and their masks. Answer tokens are learned.
std::vector<Text> answer_texts(const SafetensorsFile& batch);

// The training data of a case: answers with their advantages and log-probabilities.
struct PolicyCase {
  PolicySettings settings;
  std::vector<Text> texts;
};

// Reads case c of grpo.json or rloo.json, and compares the advantages and the statistics of the rewards. If
// the case needs something that is not built, sets why_not_built. `log_probs`: the file grpo_tensors.
PolicyCase read_policy_case(ObjectiveCase& c, const nlohmann::json& file, const SafetensorsFile& batch,
                            const SafetensorsFile& log_probs, double tolerance);

}  // namespace primus
