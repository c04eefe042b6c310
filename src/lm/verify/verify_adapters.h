// Compares adapters of PEFT with their reference: logits, loss, gradients, AdamW steps and merged weights. A
// folder of references has a file peft.json, and a PEFT folder for each case:
//
//   peft.json            {CASE: {loss, learning_rate, trajectory: [[loss, gradient norm], ...],
//                        merged_minus_adapter_logits_max, base_model}}; base_model is relative to the PEFT
//                        folder; merged_minus_adapter_logits_max is a text if PEFT cannot merge the adapters
//   CASE/io.safetensors  input_ids [batch, sequence] int64, logits, grad/NAME (names of PEFT's parameters
//                        with the adapter "default"), merged/NAME
//
// The loss is the mean cross-entropy of all next tokens. AdamW has betas 0.9 and 0.999, epsilon 1e-8, and
// neither weight decay nor clipping. All numbers are compared in fp32.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "lm/model/family.h"
#include "lm/verify/verify.h"

namespace primus {

struct AdapterReport {
  // Limits of errors. The error of a tensor is divided by the reference's largest element, and the error of a
  // number by the reference.
  static constexpr double kTolerance = 1e-5, kTrajectoryTolerance = 1e-4;

  std::string name;
  double loss = 0, reference_loss = 0;
  TensorComparison logits;
  std::vector<TensorComparison> gradients, merged;
  std::vector<VerifyReport::Point> trajectory;
  std::vector<std::string> failures;  // sentences; empty: the case passed

  bool passed() const { return failures.empty(); }
};

// Checks every case of `folder`, or only the case `only`. Throws an Error if the folder does not have the
// form above. Calls `make_device` once per case.
std::vector<AdapterReport> verify_adapters(const std::filesystem::path& folder,
                                           const std::optional<std::string>& only,
                                           const FamilyRegistry& families,
                                           const std::function<std::unique_ptr<Device>()>& make_device);

}  // namespace primus
