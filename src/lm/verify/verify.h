// Compares a model with its reference: logits, loss, every gradient, and a few AdamW steps. The reference's
// results are in files that another implementation wrote (tests/golden/models shows the format):
//
//   io.safetensors     input_ids [batch, sequence] int64, logits [batch, sequence, vocab]
//   grads.safetensors  d loss / d weight, named like the model's weights
//   golden.json        loss, grad_norm, adamw settings,
//                      trajectory_loss_gradnorm [[loss, gradient norm before clipping], ...]
//
// The loss is the mean next-token cross-entropy over positions [0, sequence-1).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "lm/model/family.h"
#include "tensor/dtype.h"

namespace primus {

struct VerifyOptions {
  std::filesystem::path model;  // folder with config.json and safetensors
  std::filesystem::path inputs;
  std::optional<std::filesystem::path> gradients, trajectory;
  DType compute = DType::kF32;
  // Limits, finite and not negative. If empty, the default of the compute type is used (fp32: 2e-5,
  // trajectory 1e-4, relative; bf16: 2e-2 for both).
  std::optional<double> tolerance, trajectory_tolerance;
  // Compares gradient norms only in the first `norm_steps` steps, and losses in all steps. Empty: both in
  // all.
  std::optional<std::size_t> norm_steps = {};
};

struct TensorComparison {
  std::string name;
  double largest = 0;     // max |a - b|
  double normalised = 0;  // max |a - b| / max |b|, compared with the tolerance; 0 if there is no error
  double euclidean = 0;   // ||a - b|| / ||b||
  double limit = 0;       // limit of `normalised`
};

struct VerifyReport {
  double loss = 0;
  std::optional<double> reference_loss;
  TensorComparison logits;
  std::vector<TensorComparison> gradients;
  double gradient_error = 0;  // ||a - b|| / ||b|| over all gradients together
  struct Point {
    double loss, reference_loss, gradient_norm, reference_gradient_norm;
  };
  std::vector<Point> trajectory;
  // In fp32 `tolerance` applies to the logits and each gradient, `trajectory_tolerance` to each loss and
  // gradient norm. In bf16, these limits apply to the logits, to all gradients together, and to each loss. A
  // single gradient tensor may differ by single_factor times as much (2.5, for some models more), and a
  // gradient norm by twice as much. In a two-layer model, rounding only the weights to bf16 and computing
  // exactly changes the gradient of a single tensor by up to 2.5e-2; transformers in bf16 differs by 4.9e-2
  // (tests/golden/README.md). Primus differs by up to 4.4e-2: the order of sums depends on the instruction
  // set. For tensors with fewer than kFewElements elements, the factor is single_factor + 1. Errors are
  // divided by the largest element, which in such small tensors is hardly larger than the mean.
  double tolerance = 0, trajectory_tolerance = 0;
  double single_factor = 1;
  static constexpr std::int64_t kFewElements = 16;
  // Number of tokens that bf16 would have routed to other experts than fp32. Used for bf16 with a mixture of
  // experts. If two experts have almost equal scores, rounding in bf16 decides between the two, and a token
  // with other experts cannot be compared. So the model's fp32 run determines the experts of each token in
  // each step. The bf16 run computes only the weights of these experts. The fp32 run chooses the same experts
  // as the reference, because otherwise the verification in fp32 would fail.
  std::int64_t rerouted_tokens = 0;
  std::vector<std::string> notes;     // sentences about unusual values in config.json
  std::vector<std::string> failures;  // sentences about results that exceed the tolerance; empty: the model
                                      // is verified

  bool passed() const { return failures.empty(); }
};

// Calls `make_device` once; for bf16 with a mixture of experts, calls it twice.
VerifyReport verify_model(const VerifyOptions& options, const FamilyRegistry& families,
                          const std::function<std::unique_ptr<Device>()>& make_device);

}  // namespace primus
