// A model on its own rank, with the weights and inputs of a reference. Computes logits of the inputs, and
// training steps on them, for verify_model(). Not thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lm/checkpoint/safetensors.h"
#include "lm/data/batch.h"
#include "lm/train/step/session.h"

namespace primus {

// Returns the reference's inputs as one batch, labelled with the next tokens; the last position has no label.
// `ids` is int64 [batch, sequence]; throws an Error, which names `where`, for another type or shape and for
// ids beyond `vocab`.
data::Batch reference_batch(const TensorView& ids, std::int64_t vocab, const std::string& where);

// Returns a host copy of a device tensor, fp32 or bf16.
std::vector<float> download(engine::Rank& rank, const Tensor& tensor);

class VerifiedSession {
 public:
  // The chosen experts, or latents, of every token in every layer, in the layout of RoutingTrace.
  struct Choices {
    std::vector<std::int32_t> experts, selected;
    bool empty() const { return experts.empty(); }
  };

  // `batch` has the number of sequences, the length and the positions of settings.step. If the settings have
  // a loss rule, it loads its frozen models.
  VerifiedSession(std::unique_ptr<Device> device, const SessionSettings& settings,
                  const FamilyRegistry& families, const SafetensorsFolder& weights, data::Batch batch);

  // Returns the logits of a language model, [tokens, vocab].
  std::vector<float> logits();
  // Calls LossRule::before_step, then computes the gradients for the inputs.
  StepResult forward_backward();
  void update(std::int64_t step, double learning_rate, double weight_decay);
  // Calls `use` for each trained weight, with its gradient, its published name, and its element order in
  // published checkpoints. Requires forward_backward().
  void for_each_gradient(
      const std::function<void(const std::string& name, const std::vector<float>& values)>& use) {
    for_each_gradient(session_->store(), use);
  }
  // Like the function above, for the weights of another trained model of the session.
  void for_each_gradient(
      engine::ParameterStore& store,
      const std::function<void(const std::string& name, const std::vector<float>& values)>& use);

  // Sets the experts that all following passes use. If empty, the routers choose.
  void prescribe(const Choices& choices);
  // Returns the choices of the last pass.
  Choices choices();

  std::int64_t tokens() const { return static_cast<std::int64_t>(batches_.front().tokens.size()); }
  TrainingSession& session() { return *session_; }
  engine::Rank& rank() { return rank_; }

 private:
  std::vector<float> logits_of(TrainingSession& session);
  RoutingTrace make_trace();

  std::vector<data::Batch> batches_;  // one batch
  SessionSettings settings_;
  engine::Rank rank_;
  RoutingTrace trace_;
  std::unique_ptr<TrainingSession> session_;
};

}  // namespace primus
