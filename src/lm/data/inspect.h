// Statistics of a data set, for display and for checks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lm/data/indexed_dataset.h"

namespace primus::data {

struct InspectOptions {
  bool read_tokens = true;            // whether all of PREFIX.bin is read; otherwise only the index is read
  std::int64_t vocab_size = 0;        // ids that are not smaller are counted; 0: unknown vocabulary
  std::optional<std::int32_t> eod{};  // documents that end with this token are counted
};

struct Inspection {
  std::int64_t documents = 0, empty_documents = 0;
  std::int64_t sequences = 0, empty_sequences = 0;
  std::int64_t tokens = 0;
  std::int32_t shortest = 0, longest = 0;  // lengths of the shortest and longest sequence, in tokens
  std::int64_t unused_bytes = 0;           // number of bytes of the data file that belong to no sequence

  struct Bin {
    std::int64_t from = 0, to = 0;  // inclusive range of lengths in tokens: 0, 1, 2-3, 4-7 ...
    std::int64_t sequences = 0, tokens = 0;
  };
  std::vector<Bin> histogram;  // bins up to the longest sequence

  // Set with read_tokens, if the data set has a token.
  std::optional<std::int32_t> smallest_id, largest_id;
  std::int64_t beyond_vocabulary = 0;  // number of tokens with ids outside the vocabulary
  struct Beyond {
    std::int64_t document = 0, position = 0;  // number of the document, counted from 0, and the token's
                                              // position in the document
    std::int32_t id = 0;
  };
  std::optional<Beyond> first_beyond;
  std::int64_t ended_documents = 0;  // number of documents whose last token is eod
};

// The data set must be open, so that index and data agree. Error(kInvalid) for tokens beyond int32.
Inspection inspect(const IndexedDataset& dataset, const InspectOptions& options);

}  // namespace primus::data
