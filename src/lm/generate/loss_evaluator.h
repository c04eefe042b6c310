// The mean loss of a model over a text: each token but the first is predicted once, from the tokens before it
// in its window of `sequence` tokens; or over the chosen tokens of texts that stand alone. A loss that is not
// a number throws Error(kNumerics), which names the first operator that gave none. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/rank.h"
#include "lm/decode/inference_model.h"

namespace primus {

struct EvaluatorSettings {
  DType compute = DType::kF32;  // fp32 or bf16
  std::int64_t sequence = 0;    // tokens per window; at most the model's max_positions
  std::int64_t batch = 4;       // windows at a time
};

class LossEvaluator {
 public:
  // Weights are zero until they are loaded. `families` is needed only here.
  LossEvaluator(std::unique_ptr<Device> device, const ModelConfig& config, const FamilyRegistry& families,
                const EvaluatorSettings& settings);

  engine::ParameterStore& store() { return parts_->store; }
  engine::Rank& rank() { return rank_; }

  std::int64_t vocab_size() const { return config_.vocab; }
  // Goes on with the text. Throws Error(kInvalid) for an id outside the vocabulary.
  void add(std::span<const std::int32_t> tokens);
  // A text by itself, of at most `sequence` + 1 tokens; of its tokens those count that are `chosen` (one for
  // each, the first is never predicted). Not within a text of add().
  void add_alone(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> chosen);
  // The text is complete: evaluates what add() has kept back.
  void finish();

  // So far. The sum of -ln p(token), and over how many tokens it goes.
  double total() const { return total_; }
  std::int64_t tokens() const { return predicted_; }
  double mean() const { return predicted_ > 0 ? total_ / static_cast<double>(predicted_) : 0; }

 private:
  void check(std::int32_t id) const;
  void add_window();
  // A row of the batch: labels[i] of tokens[i], which count where counts(i).
  template <class Counts>
  void add_row(std::span<const std::int32_t> tokens, Counts&& counts);
  void run_batch();
  // First operator of the forward pass with a NaN: "layers.2.rms_norm"; nothing where all are numbers.
  std::string first_non_finite();
  // The loss of each token of a batch of `model`, on a tape.
  engine::Value losses_of(const LanguageModel& model, engine::Tape& tape);

  ModelConfig config_;
  EvaluatorSettings settings_;
  engine::Rank rank_;
  std::unique_ptr<InferenceModel> parts_;
  std::vector<std::int32_t> pending_;  // text not yet in a window, from the last token that has been read
  std::vector<std::int32_t> tokens_, labels_, positions_;  // [batch, sequence], filled up to rows_
  std::vector<float> weights_, losses_;
  std::int64_t rows_ = 0, predicted_ = 0;
  double total_ = 0;
};

}  // namespace primus
