// The cases of PPO with a value model of verify_objective.h.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "lm/train/objectives/rules/ppo_estimates.h"
#include "lm/verify/objective_cases.h"
#include "lm/verify/verified_session.h"

namespace primus {

// The inputs of a case: its settings, and prompts with their answers, whose values are not set yet.
struct PpoCase {
  PpoSettings settings;
  std::vector<Text> texts;
  double learning_rate = 0, temperature = 1;
  double missing_eos_penalty = 0;
};

// Reads case c of ppo.json. If the case needs something that is not built, sets why_not_built.
PpoCase read_ppo_case(ObjectiveCase& c, const nlohmann::json& file, const SafetensorsFile& batch);

// Compares what was computed from the answers before the first step: log-probabilities, values, rewards,
// advantages and returns. `tensors`: the file ppo_tensors.
void compare_estimates(ObjectiveCase& c, const nlohmann::json& file, std::span<const PpoAnswer> answers,
                       const SafetensorsFile& tensors, double tolerance);

// Compares the gradients of both models in the first step.
void compare_gradients(ObjectiveCase& c, VerifiedSession& session, const SafetensorsFile& tensors,
                       double tolerance);

// Returns the optimizer of the cases: AdamW without weight decay and without clipping.
OptimizerSettings optimizer_of_ppo();

}  // namespace primus
