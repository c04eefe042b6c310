// Which tokens each sample of a data set holds: Megatron-LM's document, sample and shuffle indices
// (GPTDataset).
//
// The sequences are repeated for as many epochs as the samples need and shuffled; laid end to end they form
// one stream, of which sample row k takes the tokens [k L, k L + L] (L is the sequence length; neighbours
// share one token); the rows are then shuffled too. Where the last epoch would be used for less than 80 %,
// its sequences and rows are shuffled by themselves, behind the others.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"

namespace primus::data {

struct SampleOrder {
  // A place in the stream: entry of `documents`, and token in that sequence.
  struct Place {
    uint32_t document = 0, offset = 0;
    bool operator==(const Place&) const = default;
  };
  std::vector<int32_t> documents;  // sequence numbers in stream order, all epochs
  std::vector<Place> rows;         // row k begins at rows[k] and ends with the token at rows[k + 1]
  std::vector<uint32_t> shuffle;   // sample i is row shuffle[i]
  int64_t epochs = 1;
  bool separate_last_epoch = false;

  int64_t samples() const { return static_cast<int64_t>(shuffle.size()); }
};

struct OrderOptions {
  int64_t first = 0, last = 0;  // the sequences [first, last) of the split
  int64_t seq_length = 0;       // L
  int64_t samples = -1;         // at least so many; -1: one epoch
  int64_t seed = 1234;
};

// `length(i)`: tokens of sequence i. `name` is for messages. Error(kInvalid) where the split holds no token,
// or fewer than one sample needs; kUnsupported beyond 2^32 samples or sequences.
SampleOrder build_sample_order(const OrderOptions& options, FunctionRef<int32_t(int64_t)> length,
                               std::string_view name);

}  // namespace primus::data
