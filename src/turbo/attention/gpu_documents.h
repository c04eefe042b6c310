// Describes packed sequences for cuDNN: the length of each document, and its offset in every operand.
#pragma once

#include "turbo/attention/cudnn_attention.h"
#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// Finds the documents encoded in first_key, divides them at chunk boundaries, and writes the tables that
// cudnn_documents_bytes() describes. If there are more than `documents` documents, or if first_key changes
// within a document, all lengths are 0 and the flag is 1. Runs in one block.
struct CutDocuments {
  static constexpr int kThreads = 512;
  const std::int32_t* first_key;  // [tokens]
  std::int32_t* result;
  std::int64_t tokens, seq, chunk, documents;
  std::int64_t rows[kCudnnOffsetArrays];  // stride between tokens in elements, for every array of offsets

  struct Shared {
    std::int32_t sums[2][kThreads];
    std::int32_t irregular;
  };

  // Returns the first key that the token's query sees, relative to its sequence.
  PRIMUS_DEVICE std::int64_t first(std::int64_t token) const {
    const std::int64_t i = token % seq;
    const std::int64_t first = smaller(first_key[token], i);
    return chunk > 0 ? larger(first, i / chunk * chunk) : first;
  }
  PRIMUS_DEVICE bool starts(std::int64_t token) const { return first(token) == token % seq; }

  PRIMUS_DEVICE void operator()() const {
    Shared& own = shared<Shared>();
    if (thread() == 0) own.irregular = 0;
    barrier();
    const std::int64_t each = (tokens + kThreads - 1) / kThreads;
    const std::int64_t begin = smaller(thread() * each, tokens), end = smaller(begin + each, tokens);
    std::int32_t count = 0;
    for (std::int64_t token = begin; token < end; ++token) {
      if (starts(token)) {
        ++count;
      } else if (first(token) != first(token - 1)) {
        own.irregular = 1;  // a race is harmless, because all threads store the same value
      }
    }
    own.sums[0][thread()] = count;
    int now = 0;
    for (int distance = 1; distance < kThreads; distance *= 2) {
      barrier();
      const std::int32_t before = thread() >= distance ? own.sums[now][thread() - distance] : 0;
      own.sums[1 - now][thread()] = own.sums[now][thread()] + before;
      now = 1 - now;
    }
    barrier();
    const std::int64_t found = own.sums[now][kThreads - 1];
    const bool none = own.irregular != 0 || found > documents;
    std::int32_t* const lengths = result + 1;
    std::int32_t* const offsets = lengths + documents;
    if (thread() == 0) result[0] = none ? 1 : 0;
    // The offsets of unused documents point to the end.
    for (std::int64_t d = (none ? 0 : found) + thread(); d <= documents; d += kThreads) {
      if (d < documents) lengths[d] = 0;
      put(offsets, d, none ? 0 : tokens);
    }
    if (none) return;
    std::int64_t d = own.sums[now][thread()] - count;
    for (std::int64_t token = begin; token < end; ++token) {
      if (starts(token)) put(offsets, d++, token);
    }
    barrier();
    const std::int32_t* const of_tokens = offsets + kTokens * (documents + 1);
    for (std::int64_t i = thread(); i < found; i += kThreads) {
      lengths[i] = of_tokens[i + 1] - of_tokens[i];
    }
  }

 private:
  static constexpr int kTokens =
      static_cast<int>(CudnnTensor::kTokenOffsets) - static_cast<int>(CudnnTensor::kQOffsets);

  PRIMUS_DEVICE void put(std::int32_t* offsets, std::int64_t document, std::int64_t token) const {
    for (int array = 0; array < static_cast<int>(kCudnnOffsetArrays); ++array) {
      offsets[array * (documents + 1) + document] = static_cast<std::int32_t>(token * rows[array]);
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
