// Does this model compute what its reference computed? Logits, loss, every gradient and a few AdamW steps,
// against files written by another implementation (tests/golden/models shows the format):
//
//   io.safetensors     input_ids [batch, sequence] int64, logits [batch, sequence, vocab]
//   grads.safetensors  d loss / d weight, under the names of the model's weights
//   golden.json        loss, grad_norm, adamw settings, trajectory_loss_gradnorm [[loss, gradient norm before
//   clipping], ...]
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
  std::filesystem::path model;  // holds config.json and safetensors
  std::filesystem::path inputs;
  std::optional<std::filesystem::path> gradients, trajectory;
  DType compute = DType::kF32;
  // Limits, finite and not negative; none: the compute type's (fp32 2e-5, trajectory 1e-4 relative; bf16 2e-2
  // for all).
  std::optional<double> tolerance, trajectory_tolerance;
};

struct TensorComparison {
  std::string name;
  double largest = 0;     // max |a - b|
  double normalised = 0;  // max |a - b| / max |b|: what the tolerance applies to; 0 when there is no error
  double euclidean = 0;   // ||a - b|| / ||b||
  double limit = 0;       // of `normalised`
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
  // In fp32 `tolerance` holds for the logits and for each gradient, `trajectory_tolerance` for each loss and
  // gradient norm. In bf16 they hold for the logits, for all gradients together, and for each loss; one
  // gradient tensor and one gradient norm may be off by twice as much: rounding the weights to bf16, with
  // exact arithmetic from there on, already puts single tensors of a two-layer model at 2.5e-2, and
  // transformers in bf16 is at 4.9e-2 (tests/golden/README.md). Tensors of fewer than kFewElements have three
  // times the limit: the largest of so few is hardly above their mean, by which errors are normalised.
  double tolerance = 0, trajectory_tolerance = 0;
  double single_factor = 1;
  static constexpr std::int64_t kFewElements = 16;
  // bf16 and a mixture of experts: where two experts score almost alike, rounding decides, for whoever
  // computes in bf16, and a token that takes another way has nothing to be compared with. So the model's fp32
  // run (whose choices are the reference's, or fp32 would not verify) says which experts each token goes to,
  // in each step; what they weigh is computed in bf16. This counts the tokens that bf16 by itself would have
  // sent elsewhere.
  std::int64_t rerouted_tokens = 0;
  std::vector<std::string> notes;     // what is odd about config.json, as sentences
  std::vector<std::string> failures;  // what is out of tolerance, as sentences; empty: verified

  bool passed() const { return failures.empty(); }
};

// `make_device` is called once, or twice for bf16 and a mixture of experts.
VerifyReport verify_model(const VerifyOptions& options, const FamilyRegistry& families,
                          const std::function<std::unique_ptr<Device>()>& make_device);

}  // namespace primus
