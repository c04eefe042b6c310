// Data for timing a step: random tokens in place of text.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random/random.h"
#include "lm/train/training_step.h"

namespace primus {

// One microbatch of `count` uniformly random tokens; labels are the next tokens.
struct RandomBatch {
  std::vector<std::int32_t> tokens, labels;
  std::vector<float> loss_mask;
  std::vector<std::int32_t> document_starts;  // every sequence is one document

  RandomBatch(std::int64_t count, std::int64_t sequence, std::int64_t vocab, std::uint64_t microbatch)
      : loss_mask(static_cast<std::size_t>(count), 1.0F) {
    const RandomStream random(microbatch, RandomPurpose::kData);
    for (std::int64_t i = 0; i <= count; ++i) {
      const auto value = static_cast<std::int32_t>(
          random.below(static_cast<std::uint64_t>(i), static_cast<std::uint32_t>(vocab)));
      if (i < count) tokens.push_back(value);
      if (i > 0) labels.push_back(value);
      if (i % sequence == 0) document_starts.push_back(static_cast<std::int32_t>(i));
    }
  }
  HostBatch host() const { return {tokens, labels, loss_mask, document_starts}; }
};

}  // namespace primus
