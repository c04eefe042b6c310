// Brings microbatches to the device, as inputs of a language model on a tape: tokens, labels and loss
// weights, positions and documents, and the shifted copies that multi-token prediction needs. Of a mesh with
// context ranks, each rank gets its own tokens of every sequence.
//
// A microbatch is copied into a Staging on the host first, which a device may read later: it must stay as it
// is until then. On a measuring rank nothing is copied. Not thread-safe; one per model and rank.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/context_attention.h"
#include "engine/expert_parallel.h"
#include "engine/rank.h"
#include "engine/tape.h"
#include "engine/tensor_parallel.h"
#include "lm/data/batch.h"
#include "lm/model/language_model.h"
#include "lm/train/step_settings.h"

namespace primus {

class StepInputs {
 public:
  // A microbatch on the host.
  struct Staging {
    data::Batch batch;
    std::vector<float> loss_weights;
    std::vector<std::int32_t> first_key, token_numbers;
    struct Shifted {
      std::vector<std::int32_t> tokens, labels;
      std::vector<float> loss_weights;
    };
    std::vector<Shifted> mtp;                  // by depth of multi-token prediction
    std::vector<std::vector<std::byte>> held;  // of each of these, the values of this context rank's tokens
  };

  // All must outlive this.
  StepInputs(engine::Rank& rank, const LanguageModel& model, const StepSettings& settings);

  // Copies microbatch `number` of the step to the host's side. The mask becomes loss weights whose sum is
  // `weight`: it is divided by its own sum, or by the batch's divisor. `with_mtp`: with the inputs of
  // multi-token prediction.
  void stage(Staging& host, const data::BatchView& batch, std::int64_t number, double weight,
             bool with_mtp) const;
  // The inputs of a chunk of the model on a tape, in memory of the stash. Copies them from `host`, unless
  // `places` is given, which receives the memory instead: for copy(), when a recorded step is replayed.
  ModelInputs place(engine::Tape& tape, int chunk, bool with_mtp, Staging& host,
                    std::vector<Tensor>* places = nullptr);
  // Copies the inputs that place() put there. `training` and `with_mtp` as then.
  void copy(const std::vector<Tensor>& places, int chunk, bool training, bool with_mtp, Staging& host);

  // Tokens of a microbatch on this context rank.
  std::int64_t held_tokens() const;
  // Whether the model draws random numbers by the number of a token: routers, dropout and rounding do, and
  // only in training.
  bool draws_random() const { return draws_random_; }
  // After an error that left a step half-way.
  void abandon() noexcept {
    if (experts_) experts_->abandon();
  }

 private:
  // Calls visit(value, dtype, shape, host pointer) for each input of the chunk, in the order of their memory.
  template <class Visit>
  void for_each(ModelInputs& inputs, int chunk, bool training, bool with_mtp, Staging& host,
                Visit&& visit) const;
  Staging::Shifted shifted(const data::BatchView& batch, std::int64_t depth, double weight) const;
  std::vector<std::int32_t> first_key(std::span<const std::int32_t> document_starts) const;
  // Selects the values of the tokens that this context rank holds.
  template <class T>
  const void* held_of(Staging& host, const std::vector<T>& values) const;

  engine::Rank& rank_;
  const LanguageModel& model_;
  const StepSettings settings_;
  const bool draws_random_;
  // With context ranks: the numbers of the tokens that each of them holds, within a microbatch.
  std::optional<engine::ContextParallel> context_;
  std::vector<std::vector<std::int32_t>> held_;
  std::optional<engine::TensorParallel> tensor_;
  std::optional<engine::ExpertParallel> experts_;
  std::vector<std::int32_t> positions_;
};

}  // namespace primus
