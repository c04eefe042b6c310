// Compares the losses of post-training with their references: loss, metrics, log-probabilities, gradients and
// AdamW steps, in fp32. The references are in a folder that another implementation wrote:
//
//   model/NAME/           models: policy, reference; for PPO also value and ppo_reward
//   pref.json             cases of DPO, KTO, ORPO and CPO: settings, loss, metrics, grad_norm, grad_norms,
//                         trajectory; and log-probabilities of each answer
//   pref_grads            CASE/WEIGHT: gradients of some weights; policy_per_token_logps and
//                         reference_per_token_logps
//   pref_batch, kto_batch, orpo_batch, cpo_batch    token ids and masks
//   sft.json, sft_grads, sft_completion_only_batch, sft_whole_text_batch    cases of fine-tuning
//   grpo.json, rloo.json  cases of policy gradients: rewards, advantages, and the values of the others
//   grpo_tensors          CASE/WEIGHT: gradients of some weights; log-probabilities of answer tokens
//   rloo_grads, rl_batch  gradients; token ids and masks of prompts and answers
//   reward.json           cases of reward models: settings, loss, scores, margins
//   ppo.json              cases of PPO with a value model: answers, settings, and the losses of each step
//   ppo_tensors, ppo_batch    values of answer tokens, and gradients of the first step; token ids
//
// Names without an extension are safetensors files. Files that do not exist have no cases.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "lm/model/family.h"

namespace primus {

struct VerifyObjectiveOptions {
  std::filesystem::path folder;
  // Names of cases and of objectives (dpo, kto, orpo, cpo, sft, reward, grpo, rloo, ppo) to run; empty: all.
  std::vector<std::string> cases = {}, objectives = {};
  double tolerance = 1e-5, trajectory_tolerance = 1e-4;
};

// Compares a number or a tensor with its reference. The error of a tensor is the largest difference of an
// element. Errors of losses and metrics are divided by the larger of 1 and the reference, errors of norms by
// the reference, and errors of tensors by the reference's largest element.
struct ObjectiveCheck {
  std::string name;  // "loss", "gradient of model.norm.weight", "step 3: loss"
  double value = 0, reference = 0;
  double error = 0, limit = 0;

  bool passed() const { return error <= limit; }  // false for NaN
};

struct ObjectiveCase {
  std::string file, objective, name;  // "pref.json", "dpo", "sigmoid"
  std::string why_not_built = {};     // if not empty, the case was not run
  std::vector<ObjectiveCheck> checks = {};

  bool passed() const;
};

struct ObjectiveReport {
  std::vector<ObjectiveCase> cases;
  bool passed() const;  // whether every case was run and passed, and there is at least one
};

// Calls `progress` before each case. Throws an Error for a folder without known files, for files that are not
// in this format, and for names of cases or objectives that do not exist.
ObjectiveReport verify_objectives(const VerifyObjectiveOptions& options, const FamilyRegistry& families,
                                  const std::function<std::unique_ptr<Device>()>& make_device,
                                  const std::function<void(const ObjectiveCase&)>& progress = {});

}  // namespace primus
