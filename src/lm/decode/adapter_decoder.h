// Text generators for a base model and its adapters: the weights of the base are in memory once. One of the
// models generates at a time. All memory is measured and allocated once: that of the model that needs the
// most for generating, and the adapters of all models. Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/device.h"
#include "engine/runtime/rank.h"
#include "lm/decode/inference_model.h"
#include "lm/decode/scheduler.h"

namespace primus {

class AdapterDecoder {
 public:
  // Creates the models with zero weights, which the caller then loads. The models after the first share the
  // weights of the first (InferenceModel). `settings`: one entry per model, all with the same compute type.
  // ReaderSettings::pass_tokens is the number of tokens of the prompts that are read concurrently; passes are
  // smaller if the device or its free memory require this (pass_tokens.h).
  // `families` is used only during construction. Throws Error(kInvalid) if a model does not support its
  // capacity, or cannot share the weights.
  AdapterDecoder(std::unique_ptr<Device> device, std::span<const ModelConfig> models,
                 const FamilyRegistry& families, std::vector<ReaderSettings> settings);

  // Returns a decoder for this model. Another model's decoder ends, with its texts and its cache. The decoder
  // of the same model remains as it is.
  DecodeScheduler& use(std::size_t model);

  engine::ParameterStore& store(std::size_t model) { return models_[model]->store; }
  engine::Rank& rank() { return rank_; }

 private:
  engine::Rank rank_;
  std::vector<ReaderSettings> settings_;
  InferenceModels models_;
  std::size_t used_ = 0;
  std::optional<DecodeScheduler> decoder_;  // of the model used_
};

}  // namespace primus
