// Which sequences of a text, and which conversations, are training, validation and test data.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "lm/data/gpt_dataset.h"

namespace primus::data {

// A number of sequences of which split_sequences() gives some to every share above 0.
inline constexpr std::int64_t kManySequences = std::int64_t{1} << 50;

// Returns the first sequence of the text that is held out for validation: the last hundredth, but at least
// enough for one sample. The border is at the start of a sequence, so that none of it is trained on. Returns
// the number of sequences if there is too little text to divide.
std::int64_t held_out_from(const TokenSource& source, std::int64_t seq_length);

// Like split_sequences(), but validation or test data whose share is above 0 and rounds to nothing are the
// sequences from start_before(end) up to the end of their share, and training gets fewer. Only data that will
// be `drawn` get them. The result is that of split_sequences() if nothing would be left to train on.
std::vector<Share> split_with_minimum(std::string_view shares, std::int64_t sequences,
                                      const std::array<bool, 3>& drawn,
                                      const std::function<std::int64_t(std::int64_t)>& start_before);

// Like split_with_minimum(), for text: such data get enough sequences for one sample, and training keeps at
// least as many.
std::vector<Share> split_text(const TokenSource& source, std::string_view shares,
                              const std::array<bool, 3>& drawn, std::int64_t seq_length);

// Returns "20 of 1120 tokens (1.8 %) are held out for validation", or for the test.
std::string describe_held_out(const TokenSource& source, const Share& share, bool test);

// Returns the error for a share above 0 of which no sequence is left. `part`: "train", "valid" or "test".
Error empty_share(std::string_view shares, std::string_view part, std::string_view data,
                  std::int64_t sequences);

}  // namespace primus::data
