// Computes a model's mean loss over a text. Each token except the first is predicted once, from the preceding
// tokens in a window of `sequence` tokens. Can also compute the mean loss over chosen tokens of separate
// texts. If a loss is not finite, throws Error(kNumerics), which names the first operator whose output has a
// NaN. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/runtime/rank.h"
#include "lm/decode/inference_model.h"

namespace primus {

struct EvaluatorSettings {
  DType compute = DType::kF32;  // data type of computations: fp32 or bf16
  std::int64_t sequence = 0;    // number of tokens per window; at most the model's max_positions
  std::int64_t batch = 4;       // number of windows per pass
};

class LossEvaluator {
 public:
  // Creates the model with zero weights, which the caller then loads. `families` is used only during
  // construction.
  LossEvaluator(std::unique_ptr<Device> device, const ModelConfig& config, const FamilyRegistry& families,
                const EvaluatorSettings& settings);
  // Like above, for several models on the same device. The models after the first share the weights of the
  // first, except their adapters' weights (InferenceModel). `models`: at least one.
  LossEvaluator(std::unique_ptr<Device> device, std::span<const ModelConfig> models,
                const FamilyRegistry& families, const EvaluatorSettings& settings);

  engine::ParameterStore& store(std::size_t model = 0) { return models_[model]->store; }
  engine::Rank& rank() { return rank_; }
  // Evaluates this model from now on; at first, the first one. The results begin at zero again. Do not call
  // select() while a text is unfinished.
  void select(std::size_t model);

  std::int64_t vocab_size() const { return config_.vocab; }
  // Appends tokens to the text. Throws Error(kInvalid) for an id outside the vocabulary.
  void add(std::span<const std::int32_t> tokens);
  // Evaluates a separate text of at most `sequence` + 1 tokens. `chosen` has one flag per token: only tokens
  // with a flag of 1 count. The first token never counts, because it is not predicted. Do not call
  // add_alone() while a text of add() is unfinished.
  void add_alone(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> chosen);
  // Ends the text: evaluates the tokens that add() has buffered.
  void finish();

  // Return the results so far: the sum of -ln p(token), the number of tokens in this sum, and the mean.
  double total() const { return total_; }
  std::int64_t tokens() const { return predicted_; }
  double mean() const { return predicted_ > 0 ? total_ / static_cast<double>(predicted_) : 0; }

 private:
  void check(std::int32_t id) const;
  void add_window();
  // Adds a row to the batch. labels[i] is the token after tokens[i]; its loss counts if counts(i).
  template <class Counts>
  void add_row(std::span<const std::int32_t> tokens, Counts&& counts);
  void run_batch();
  // Returns the name of the first operator of the forward pass whose output has a NaN, such as
  // "layers.2.rms_norm"; empty if there is none.
  std::string first_non_finite();
  // Records the model on a tape and returns the loss of each token of a batch.
  engine::Value losses_of(const LanguageModel& model, engine::Tape& tape);

  ModelConfig config_;
  EvaluatorSettings settings_;
  engine::Rank rank_;
  InferenceModels models_;
  std::size_t selected_ = 0;
  // Tokens that are not yet in a window, preceded by the last token of the previous window.
  std::vector<std::int32_t> pending_;
  std::vector<std::int32_t> tokens_, labels_, positions_;  // arrays [batch, sequence]; the first rows_ rows
                                                           // are filled
  std::vector<float> weights_, losses_;
  std::int64_t rows_ = 0, predicted_ = 0;
  double total_ = 0;
};

}  // namespace primus
