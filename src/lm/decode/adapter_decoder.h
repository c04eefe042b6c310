// Text generators for a base model and its adapters: the weights of the base are in memory once. Either one
// of the models generates at a time, or one batch has the texts of several models. All memory is measured and
// allocated once: that of the model, or of the common batch, that needs the most for generating, and the
// adapters of all models. Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/device.h"
#include "engine/operators/row_adapters.h"
#include "engine/runtime/rank.h"
#include "lm/decode/adapter_batch.h"
#include "lm/decode/inference_model.h"
#include "lm/decode/scheduler.h"

namespace primus {

class AdapterDecoder {
 public:
  // Creates the models with zero weights, which the caller then loads. The models after the first share the
  // weights of the first (InferenceModel). `settings`: one entry per model, all with the same compute type.
  // ReaderSettings::pass_tokens is the number of tokens of the prompts that are read concurrently; passes are
  // smaller if the device or its free memory require this (pass_tokens.h).
  // `batch`: models whose texts will be in one batch (models_of_one_batch()). If the device has too little
  // free memory for this batch, batched() is empty, and the models must generate one after another.
  // `families` is used only during construction. Throws Error(kInvalid) if a model does not support its
  // capacity, or cannot share the weights.
  AdapterDecoder(std::unique_ptr<Device> device, std::span<const ModelConfig> models,
                 const FamilyRegistry& families, std::vector<ReaderSettings> settings,
                 std::optional<AdapterBatch> batch = {});

  // Returns a decoder for this model. Another model's decoder ends, with its texts and its cache. The decoder
  // of the same model remains as it is.
  DecodeScheduler& use(std::size_t model);
  // Returns the models whose texts may be in one batch.
  std::vector<std::size_t> batched() const { return batch_ ? batch_->models : std::vector<std::size_t>(); }
  // Like use(), for a decoder of the texts of batched() (DecodeRequest::model). batched() must not be empty.
  DecodeScheduler& use_batch();

  engine::ParameterStore& store(std::size_t model) { return models_[model]->store; }
  engine::Rank& rank() { return rank_; }

 private:
  engine::Rank rank_;
  std::vector<ReaderSettings> settings_;
  std::optional<AdapterBatch> batch_;
  InferenceModels models_;
  engine::RowAdapters adapters_;     // of the models of batch_
  std::optional<std::size_t> used_;  // the model of decoder_; empty: those of batch_
  std::optional<DecodeScheduler> decoder_;
};

}  // namespace primus
