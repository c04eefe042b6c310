// A language model that reads tokens one after another and says what may come next, with the keys and values
// of everything read so far kept on the device.
//
// All memory is measured and taken once; a token then costs no allocation. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "engine/rank.h"
#include "engine/tape.h"
#include "lm/generate/model_folder.h"
#include "lm/model/language_model.h"

namespace primus {

struct DecoderSettings {
  DType compute = DType::kF32;  // fp32 or bf16
  std::int64_t capacity = 0;    // tokens that fit; at most the model's max_positions
  std::int64_t chunk = 128;     // tokens read in one pass of a long prompt
};

class Decoder {
 public:
  // Weights are zero until they are loaded. `families` is needed only here.
  Decoder(std::unique_ptr<Device> device, const ModelConfig& config, const FamilyRegistry& families,
          const DecoderSettings& settings);

  engine::ParameterStore& store() { return parts_->store; }
  engine::Rank& rank() { return rank_; }
  const ModelConfig& config() const { return config_; }

  // Reads `tokens` (at least one) behind those read before and returns the logits of what follows the last:
  // [vocab], valid until the next call. Throws Error(kInvalid) when they do not fit, or for an id outside the
  // vocabulary.
  std::span<const float> read(std::span<const std::int32_t> tokens);
  // Forgets all tokens from position `length` on.
  void truncate(std::int64_t length);

  std::int64_t length() const { return parts_->cache.length(); }
  std::int64_t capacity() const { return settings_.capacity; }

 private:
  struct Parts {
    engine::ParameterStore store;
    LanguageModel model;
    KvCache cache;
    Parts(engine::Rank& rank, const ModelConfig& config, const FamilyRegistry& families,
          const DecoderSettings& settings);
    void set_length(std::int64_t length);
  };
  void forward(std::span<const std::int32_t> tokens, bool logits);
  engine::MemoryPlan measure(const FamilyRegistry& families);

  ModelConfig config_;
  DecoderSettings settings_;
  engine::Rank rank_;
  std::unique_ptr<Parts> parts_;
  std::vector<std::int32_t> positions_;
  std::vector<std::byte> downloaded_;
  std::vector<float> logits_;
};

}  // namespace primus
