// A model with a reference's weights and inputs on a rank of its own: logits of the inputs, and training
// steps on them. What verify_model() compares; not thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lm/checkpoint/safetensors.h"
#include "lm/data/batch.h"
#include "lm/train/session.h"

namespace primus {

// The reference's inputs as one batch whose labels are the next tokens; the last position has none. `ids` is
// int64 [batch, sequence]; throws Error naming `where` for anything else, and for ids beyond `vocab`.
data::Batch reference_batch(const TensorView& ids, std::int64_t vocab, const std::string& where);

// Host copy of a device tensor, fp32 or bf16.
std::vector<float> download(engine::Rank& rank, const Tensor& tensor);

class VerifiedSession {
 public:
  // What was chosen for every token in every layer, as LanguageModel numbers them: RoutingTrace's.
  struct Choices {
    std::vector<std::int32_t> experts, selected;
    bool empty() const { return experts.empty(); }
  };

  // `batch` has the sequences and the length of settings.step, and its positions.
  VerifiedSession(std::unique_ptr<Device> device, const SessionSettings& settings,
                  const FamilyRegistry& families, const SafetensorsFolder& weights, data::Batch batch);

  // [tokens, vocab]
  std::vector<float> logits();
  // Gradients are complete afterwards.
  StepResult forward_backward();
  void update(std::int64_t step, double learning_rate, double weight_decay);
  // Calls `use` with the gradient of each weight that is trained, under its name and in its order of elements
  // in published checkpoints. After forward_backward().
  void for_each_gradient(
      const std::function<void(const std::string& name, const std::vector<float>& values)>& use);

  // Experts in passes from now on: those given, until they are given anew; empty: the routers' own choice.
  void prescribe(const Choices& choices);
  // Of the last pass.
  Choices choices();

  std::int64_t tokens() const { return static_cast<std::int64_t>(batch_.tokens.size()); }
  TrainingSession& session() { return *session_; }
  engine::Rank& rank() { return rank_; }

 private:
  std::vector<float> logits_of(TrainingSession& session);
  RoutingTrace make_trace();

  data::Batch batch_;
  SessionSettings settings_;
  engine::Rank rank_;
  RoutingTrace trace_;
  std::unique_ptr<TrainingSession> session_;
};

}  // namespace primus
