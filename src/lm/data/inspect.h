// What a data set holds: numbers for people and checks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lm/data/indexed_dataset.h"

namespace primus::data {

struct InspectOptions {
  bool read_tokens = true;            // all of PREFIX.bin; otherwise the index alone
  std::int64_t vocab_size = 0;        // counts larger ids; 0: no vocabulary is known
  std::optional<std::int32_t> eod{};  // counts the documents that end with it
};

struct Inspection {
  std::int64_t documents = 0, empty_documents = 0;
  std::int64_t sequences = 0, empty_sequences = 0;
  std::int64_t tokens = 0;
  std::int32_t shortest = 0, longest = 0;  // sequence, in tokens
  std::int64_t unused_bytes = 0;           // of the data file, which no sequence names

  struct Bin {
    std::int64_t from = 0, to = 0;  // lengths in tokens, both included: 0, 1, 2-3, 4-7 ...
    std::int64_t sequences = 0, tokens = 0;
  };
  std::vector<Bin> histogram;  // up to the longest

  // With read_tokens; the ids only where there is a token.
  std::optional<std::int32_t> smallest_id, largest_id;
  std::int64_t beyond_vocabulary = 0;  // tokens
  struct Beyond {
    std::int64_t document = 0, position = 0;  // counted from 0, in tokens of the document
    std::int32_t id = 0;
  };
  std::optional<Beyond> first_beyond;
  std::int64_t ended_documents = 0;  // documents whose last token is eod
};

// Opening the data set has checked already that index and data agree. Error(kInvalid) for tokens beyond
// int32.
Inspection inspect(const IndexedDataset& dataset, const InspectOptions& options);

}  // namespace primus::data
