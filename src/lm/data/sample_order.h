// Determines the tokens of each sample of a data set: Megatron-LM's document, sample and shuffle indices
// (GPTDataset).
//
// The sequences are repeated for as many epochs as the samples need, and shuffled. Concatenated, they form
// one stream. Row k holds the tokens [k L, k L + L] of the stream, where L is the sequence length;
// consecutive rows share one token. The rows are then shuffled too. If less than 80 % of the last epoch is
// needed, the sequences and rows of that epoch are shuffled separately. These rows then follow the rows of
// the earlier epochs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/files/file.h"
#include "base/system/thread_pool.h"

namespace primus::data {

struct SampleOrder {
  // A position in the stream: an index into `documents`, and a token offset within the sequence that the
  // entry names.
  struct Place {
    std::uint32_t document = 0, offset = 0;
    bool operator==(const Place&) const = default;
  };
  std::span<const std::int32_t> documents;  // sequence numbers in the order of the stream, over all epochs
  std::span<const Place> rows;              // row k begins at rows[k]; its last token is the one at rows[k +
                                            // 1]
  std::span<const std::uint32_t> shuffle;   // sample i is row number shuffle[i]
  std::int64_t epochs = 1;
  bool separate_last_epoch = false;
  std::shared_ptr<const void> storage;  // owner of the memory of the spans, if the order was built in memory
  MappedFile file;                      // the mapped file that the spans refer to, if the order is in a file;
                                        // see MappedFile::check_unchanged

  std::int64_t samples() const { return static_cast<std::int64_t>(shuffle.size()); }
};

struct OrderOptions {
  std::int64_t first = 0, last = 0;  // the split consists of the sequences [first, last)
  std::int64_t seq_length = 0;       // L, the number of input tokens per sample
  std::int64_t samples = -1;         // minimum number of samples; -1: the samples of one epoch
  std::int64_t seed = 1234;
};

// Builds an order. `length(i)` returns the number of tokens of sequence i. `name` is used in messages. Throws
// Error(kInvalid) if the split has too few tokens for one sample; kUnsupported beyond 2^32 samples or
// sequences.
SampleOrder build_sample_order(const OrderOptions& options, FunctionRef<std::int32_t(std::int64_t)> length,
                               std::string_view name);

// Returns the order of build_sample_order() from a file in the folder `cache` (docs/formats/megatron.md). The
// first process builds the file while others wait. All processes map the file and share its memory. The
// file's name is a hash of the lengths and options; a damaged file is built again.
SampleOrder cached_sample_order(const OrderOptions& options, FunctionRef<std::int32_t(std::int64_t)> length,
                                std::string_view name, const Path& cache);

}  // namespace primus::data
