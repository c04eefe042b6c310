// Statistics of a data set, for display and for checks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lm/data/indexed_dataset.h"

namespace primus::data {

struct InspectOptions {
  bool read_tokens = true;            // true: reads all of PREFIX.bin; false: reads only the index
  std::int64_t vocab_size = 0;        // ids >= vocab_size are counted; 0: the vocabulary is unknown
  std::optional<std::int32_t> eod{};  // documents whose last token is eod are counted
};

struct Inspection {
  std::int64_t documents = 0, empty_documents = 0;
  std::int64_t sequences = 0, empty_sequences = 0;
  std::int64_t tokens = 0;
  std::int32_t shortest = 0, longest = 0;  // lengths of the shortest and longest sequence, in tokens
  std::int64_t unused_bytes = 0;           // number of bytes of PREFIX.bin that belong to no sequence

  struct Bin {
    std::int64_t from = 0, to = 0;  // inclusive range of sequence lengths in tokens: 0, 1, 2-3, 4-7 ...
    std::int64_t sequences = 0, tokens = 0;
  };
  std::vector<Bin> histogram;  // bins for all lengths up to that of the longest sequence

  // Smallest and largest id. Set if read_tokens is set and the data set has a token.
  std::optional<std::int32_t> smallest_id, largest_id;
  std::int64_t beyond_vocabulary = 0;  // number of tokens whose ids are outside the vocabulary
  struct Beyond {
    std::int64_t document = 0, position = 0;  // number of the document, counted from 0, and position of the
                                              // token in that document
    std::int32_t id = 0;
  };
  std::optional<Beyond> first_beyond;
  std::int64_t ended_documents = 0;  // number of documents whose last token is eod
};

// Computes the statistics. The argument is an open data set: opening has checked that index and data agree.
// Throws Error(kInvalid) for tokens that do not fit in int32.
Inspection inspect(const IndexedDataset& dataset, const InspectOptions& options);

}  // namespace primus::data
