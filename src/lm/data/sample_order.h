// Which tokens each sample of a data set holds: Megatron-LM's document, sample and shuffle indices
// (GPTDataset).
//
// The sequences are repeated for as many epochs as the samples need, and shuffled. Concatenated, they form
// one stream; row k holds its tokens [k L, k L + L], where L is the sequence length (consecutive rows share
// one token). The rows are then shuffled too. If less than 80 % of the last epoch is needed, the sequences
// and rows of that epoch are shuffled separately and follow those of earlier epochs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/files/file.h"
#include "base/system/thread_pool.h"

namespace primus::data {

struct SampleOrder {
  // A position in the stream: the index in `documents`, and the token in the sequence of that index.
  struct Place {
    std::uint32_t document = 0, offset = 0;
    bool operator==(const Place&) const = default;
  };
  std::span<const std::int32_t> documents;  // sequence numbers of all epochs, in stream order
  std::span<const Place> rows;              // row k begins at rows[k] and ends with the token at rows[k + 1]
  std::span<const std::uint32_t> shuffle;   // sample i is row shuffle[i]
  std::int64_t epochs = 1;
  bool separate_last_epoch = false;
  std::shared_ptr<const void> storage;  // owner of the spans if they are in memory ...
  MappedFile file;                      // ... or if they are in a file; see MappedFile::check_unchanged

  std::int64_t samples() const { return static_cast<std::int64_t>(shuffle.size()); }
};

struct OrderOptions {
  std::int64_t first = 0, last = 0;  // the split's sequences are [first, last)
  std::int64_t seq_length = 0;       // L, the number of inputs per sample
  std::int64_t samples = -1;         // minimum number of samples; -1: one epoch
  std::int64_t seed = 1234;
};

// `length(i)`: tokens of sequence i. `name` is for messages. Error(kInvalid) if the split has too few tokens
// for one sample; kUnsupported beyond 2^32 samples or sequences.
SampleOrder build_sample_order(const OrderOptions& options, FunctionRef<std::int32_t(std::int64_t)> length,
                               std::string_view name);

// Returns the order of build_sample_order() from a file in the folder `cache` (docs/formats/megatron.md). The
// first process builds the file while others wait, and all of them map it, so that the order needs no private
// memory. The file's name is a hash of the lengths and options; a damaged file is built again.
SampleOrder cached_sample_order(const OrderOptions& options, FunctionRef<std::int32_t(std::int64_t)> length,
                                std::string_view name, const Path& cache);

}  // namespace primus::data
