// A batch of random tokens, for measuring the time of a step.
#pragma once

#include <cstdint>

#include "base/random/random.h"
#include "lm/data/batch.h"

namespace primus {

// Returns one microbatch of `count` sequences of uniformly random tokens. Each sequence is one document;
// labels are the next tokens.
inline data::Batch random_batch(std::int64_t count, std::int64_t sequence, std::int64_t vocab,
                                std::uint64_t microbatch) {
  data::Batch batch;
  batch.loss_mask.assign(static_cast<std::size_t>(count), 1.0F);
  const RandomStream random(microbatch, RandomPurpose::kData);
  for (std::int64_t i = 0; i <= count; ++i) {
    const auto value = static_cast<std::int32_t>(
        random.below(static_cast<std::uint64_t>(i), static_cast<std::uint32_t>(vocab)));
    if (i < count) batch.tokens.push_back(value);
    if (i > 0) batch.labels.push_back(value);
    if (i % sequence == 0) batch.document_starts.push_back(static_cast<std::int32_t>(i));
  }
  return batch;
}

}  // namespace primus
