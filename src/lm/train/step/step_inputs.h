// Copies microbatches to the device as a language model's inputs on a tape. The inputs are tokens, labels,
// loss weights, positions, documents, and the shifted copies for multi-token prediction. With context
// parallelism, a rank copies only its own tokens of every sequence.
//
// A microbatch is first copied into a Staging on the host, which must not change until the device has read
// it. A measuring rank copies nothing. Not thread-safe; each model and rank needs its own object.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/parallel/context_attention.h"
#include "engine/parallel/expert_parallel.h"
#include "engine/parallel/tensor_parallel.h"
#include "engine/runtime/rank.h"
#include "engine/runtime/tape.h"
#include "lm/data/batch.h"
#include "lm/model/language_model.h"
#include "lm/train/step/step_settings.h"

namespace primus {

class StepInputs {
 public:
  // A microbatch in host memory.
  struct Staging {
    data::Batch batch;
    std::vector<float> loss_weights;
    std::vector<std::int32_t> first_key, token_numbers;
    struct Shifted {
      std::vector<std::int32_t> tokens, labels;
      std::vector<float> loss_weights;
    };
    std::vector<Shifted> mtp;  // one entry per depth of multi-token prediction
    // for each of the inputs above: the values for the tokens of this context rank
    std::vector<std::vector<std::byte>> held;
  };

  // All arguments must outlive this object.
  StepInputs(engine::Rank& rank, const LanguageModel& model, const StepSettings& settings);

  // Copies microbatch `number` of the step into `host`. Computes loss weights from the mask: the mask
  // is divided by its sum, or by the divisor if the batch has one, and multiplied by `weight`. `with_mtp`:
  // whether to add the inputs of multi-token prediction.
  void stage(Staging& host, const data::BatchView& batch, std::int64_t number, double weight,
             bool with_mtp) const;
  // Allocates the inputs of a model chunk in stash memory on the tape, and copies the inputs from `host`. If
  // `places` is given, only stores the allocated memory in `places`. In a recorded step, copy() then copies
  // the inputs.
  ModelInputs place(engine::Tape& tape, int chunk, bool with_mtp, Staging& host,
                    std::vector<Tensor>* places = nullptr);
  // Copies the inputs into memory that place() allocated. `training` and `with_mtp` must be the same as for
  // place().
  void copy(const std::vector<Tensor>& places, int chunk, bool training, bool with_mtp, Staging& host);

  // Returns the number of tokens of a microbatch on this context rank.
  std::int64_t held_tokens() const;
  // Returns whether the model draws random numbers that depend on a token's number. In training, routers,
  // dropout and stochastic rounding do so.
  bool draws_random() const { return draws_random_; }
  // Alternates between microbatches; null: they do not alternate (ScheduleRunner::Settings::strands).
  Strands* strands() { return experts_ ? experts_->strands() : nullptr; }
  // Resets the state of exchanges between ranks after an error within a step.
  void abandon() noexcept {
    if (experts_) experts_->abandon();
  }

 private:
  // Calls visit(value, dtype, shape, host pointer) for each input of the chunk, in memory order.
  template <class Visit>
  void for_each(ModelInputs& inputs, int chunk, bool training, bool with_mtp, Staging& host,
                Visit&& visit) const;
  Staging::Shifted shifted(const data::BatchView& batch, std::int64_t depth, double weight) const;
  std::vector<std::int32_t> first_key(std::span<const std::int32_t> document_starts) const;
  // Selects the values of the tokens that are on this context rank.
  template <class T>
  const void* held_of(Staging& host, const std::vector<T>& values) const;

  engine::Rank& rank_;
  const LanguageModel& model_;
  const StepSettings settings_;
  const bool draws_random_;
  // Used with context parallelism. For each context rank, held_ lists the indices of its tokens within a
  // microbatch.
  std::optional<engine::ContextParallel> context_;
  std::vector<std::vector<std::int32_t>> held_;
  std::optional<engine::TensorParallel> tensor_;
  std::optional<engine::ExpertParallel> experts_;
  std::vector<std::int32_t> positions_;
};

}  // namespace primus
