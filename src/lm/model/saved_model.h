// The tensors of one model in a checkpoint, by the names of the model's parameters. The tensors of a second
// model are among the optimizer's tensors, and its name precedes their names.
//
// Errors: kInvalid if a tensor is missing, or has another shape or type. Thread-safety: one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/runtime/parameter.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/model/four_bit_weights.h"

namespace primus {

// Returns whether a tensor belongs to a LoRA adapter.
bool names_adapter(std::string_view name);

class SavedModel {
 public:
  // `second`: the name of a second model; empty: the trained model.
  SavedModel(const CheckpointReader& checkpoint, std::string_view second);
  ~SavedModel();

  std::optional<TensorView> find(TensorPart where, const std::string& name) const;
  std::optional<StoredFourBit> find_four_bit(const engine::Parameter& p, const engine::CheckpointPart& part,
                                             TensorNames& used) const;
  // Returns a tensor of the model.
  TensorView at(const std::string& name, const std::vector<std::int64_t>& shape) const;
  // Reads the elements `runs` of a part, in the type in which they are stored.
  void read_runs(TensorPart where, const std::string& name, DType dtype, const engine::Parameter& p,
                 const engine::CheckpointPart& part, const HeldRuns& runs, std::span<std::byte> to) const;
  // Returns whether the trained model has adapters.
  bool has_adapters() const;
  // The threads that read the checkpoint.
  ThreadPool* threads() const { return threads_.get(); }

 private:
  TensorPart in(TensorPart where) const { return prefix_.empty() ? where : TensorPart::kOptimizer; }

  const CheckpointReader& checkpoint_;
  const std::string prefix_;
  const std::unique_ptr<ThreadPool> threads_;
};

}  // namespace primus
